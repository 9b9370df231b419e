"""Runs of decision models: rows, keys, counts, and what becomes of replies, as for other judges."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from encore.core.errors import InputError
from encore.core.reporting import SILENT
from encore.data.pairs import read_pairs, records_of
from encore.data.rating_runs import note_on_label_mass, read_run, run_status
from encore.data.records import RESPONSES
from encore.data.rule_order import rule_order
from encore.data.rule_sets import load_rule_set, rule_file
from encore.data.study import Study
from encore.judges import http_server
from encore.judges.decision_protocol import decision_prompt
from encore.judges.judge_options import JudgeConfig
from encore.judges.server_options import ServerOptions
from encore.rating.batch_files import BatchJudge
from encore.rating.null_watch import NoRatingsError
from encore.rating.prompts import render_conversation
from encore.rating.rating_options import (
    CheckConfig,
    PlanRateConfig,
    RatingConfig,
    RatingRunOptions,
    ReplyOptions,
)
from encore.rating.rating_plan import LayoutCost, plan_rating
from encore.rating.rating_run import RatingRun, open_run, rate_run
from encore.runs.shard_files import journal_path
from encore.runs.worker import RunReport
from encore.tables.pair_details import pair_in_run
from tests.judges.decision_answers import probability
from tests.judges.hostile_server import KEY, MODEL, HostileServer, serving
from tests.rating.conftest import NUM_PAIRS
from tests.rating.test_rating_run import ratings
from tests.run_identities import differing_parts
from tests.worlds.judges import ScriptedJudge

pytestmark = pytest.mark.services

RULES = load_rule_set("encore-10").rules
#: Text of the test question.
PROBED = "Human: Hello."
STATEMENT = "The last response of the assistant meets this criterion: {0.rating_rule}"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(http_server, "MAX_RETRIES", 1)


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with serving(HostileServer()) as running:
        yield running


def config(**changes: Any) -> RatingConfig:
    judge = {"model": MODEL, "backend": "http", "api": "systemone"} | changes.pop("judge", {})
    options = {"layout": "all-rules", "decode": "expected", "shard_size": 100} | changes
    return RatingConfig(judge=JudgeConfig(**judge), **options)


def opened(
    study: Study, server: HostileServer, how: dict[str, Any] | None = None, **changes: Any
) -> RatingRun:
    options = RatingRunOptions(base_url=server.base_url, **how or {})
    return open_run(study, config(**changes), options)


def report_of(run: RatingRun) -> RunReport:
    """Rate a run, close its judge and return the report."""
    return rate_run(run, reporter=SILENT).report


def num_requests(server: HostileServer) -> int:
    """Return the number of requests without test questions."""
    return sum(PROBED not in (body.get("state"), body.get("input")) for body in server.bodies)


@pytest.mark.parametrize("api", ["systemone", "decisions"])
def test_each_probability_lands_in_the_row_of_its_rule(study, server, api):
    """The questions stand in the order that is drawn for each response."""
    run = opened(study, server, judge={"api": api}, order_seed=5)
    report = report_of(run)
    assert report.total("num_ratings") == NUM_PAIRS * 20
    assert report.total("num_calls") == num_requests(server) == NUM_PAIRS * 2
    assert report.total("prompt_tokens") == NUM_PAIRS * 20 * 100
    pairs = {pair.pair_id: pair for pair in records_of(read_pairs(study))}
    rules = {rule.rule_id: rule for rule in RULES}
    orders = set()
    for row in ratings(run):
        pair, response = pairs[row["pair_id"]], row["response"]
        state = render_conversation(pair.prompt, pair.response_text(response))
        true = probability(state, STATEMENT.format(rules[row["rule_id"]]))
        assert row["expected_rating"] == pytest.approx(true)
        assert (row["rating"], row["raw_reply"]) == (float(true >= 0.5), str(int(true >= 0.5)))
        assert row["label_mass"] == pytest.approx(0.75 if api == "systemone" else 1.0)
        orders.add(rule_order([*rules], pair_id=row["pair_id"], response=response, seed=5))
    assert len(orders) > NUM_PAIRS
    paths = run_status(run.run_dir).paths
    # The interface of OpenAI does not tell the mass.
    assert bool(note_on_label_mass(run.manifest, paths)) == (api == "systemone")
    # A row shows the prompt that was asked.
    row = pair_in_run(pairs[ratings(run)[0]["pair_id"]], run.manifest, paths)
    assert row["is_prompt_current"]
    bodies = [body.get("state") or body["input"] for body in server.bodies]
    assert {json.loads(rating["prompt"])["state"] for rating in row["ratings"]} < {*bodies}


def test_the_key_covers_the_interface_the_levels_and_the_wording_of_questions(study, tmp_path):
    def identity(**changes: Any) -> dict[str, Any]:
        how = RatingRunOptions(base_url="http://one.example/v1")
        return open_run(study, config(**changes), how).manifest.identity

    first = identity()
    assert first["questions"]["levels"] == ["0", "1"]
    assert differing_parts(first, identity(judge={"api": "decisions"})) == {
        "judge.engine_args.api",
        "questions.per_request",
    }
    two, three = identity(scale="0,1"), identity(scale="0,1,2")
    assert two["questions"]["kind"] == "score"
    assert differing_parts(two, three) == {"config.scale", "questions.levels"}
    assert differing_parts(first, two) == {
        *("config.scale", "prompt_sha256", "questions.kind", "questions.sha256")
    }
    # A statement of a rule's own is in the key of a predicate alone: no other judge reads it.
    path = tmp_path / "rules.toml"
    rules = rule_file("encore-10").read_text()
    path.write_text(
        rules.replace("rating_rule = ", 'decision_rule = "It is so."\nrating_rule = ', 1)
    )
    assert differing_parts(first, identity(rules=str(path))) == {"questions.sha256"}
    assert differing_parts(two, identity(scale="0,1", rules=str(path))) == set()
    judge = JudgeConfig(model="scripted")
    texts = [
        open_run(study, RatingConfig(judge=judge, rules=rules), judge=ScriptedJudge())
        for rules in ("encore-10", str(path))
    ]
    assert texts[0].manifest.run_key == texts[1].manifest.run_key


def test_a_statement_of_a_rules_own_is_asked_and_kept_in_the_manifest(study, server, tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(
        'name = "mine"\n[[rules]]\nrating_rule = "The response should be kind."\n'
        'decision_rule = "The assistant is kind."\n[[rules]]\nrating_rule = "It should be short."\n'
    )
    run = opened(study, server, rules=str(path), limit=1)
    report_of(run)
    asked = {spec["instructions"] for spec in server.bodies[-1]["questions"].values()}
    assert asked == {
        "The assistant is kind.",
        "The last response of the assistant meets this criterion: It should be short.",
    }
    assert [rule.get("decision_rule") for rule in read_run(run.run_dir).rules] == [
        "The assistant is kind.",
        None,
    ]
    score = opened(study, server, rules=str(path), limit=1, scale="low,high")
    report_of(score)
    asked = {spec["instructions"] for spec in server.bodies[-1]["questions"].values()}
    assert all(text.startswith("How well does the last response") for text in asked)


def test_replies_are_kept_and_paid_once_whatever_ends_a_call(study, server):
    """Less than half of the money, then a server that fails, then the rest."""
    # A request has 1,000 tokens, so the whole run costs 0.05.
    how = {"price_input": 1.0, "price_output": 0.0, "budget": 0.02}
    report = report_of(opened(study, server, how))
    assert report.early_stop is not None
    num_paid = num_requests(server)
    assert 17 <= num_paid <= 20
    server.fault, server.after = "500", server.num_asked.total() + 9  # one is the test question
    run = opened(study, server, {"concurrency": 1})
    assert report_of(run).failures
    kept = journal_path(run.run_dir, 0).read_bytes()
    assert kept.count(b'"answers": [{') == num_paid + 8
    server.fault = ""
    report = report_of(opened(study, server))
    assert report.computed("num_kept") == num_paid + 8
    assert report.total("prompt_tokens") == NUM_PAIRS * 20 * 100
    assert len({*server.num_asked} - {PROBED}) == NUM_PAIRS * 2
    rows, pairs = ratings(run), {pair.pair_id: pair for pair in records_of(read_pairs(study))}
    assert len(rows) == NUM_PAIRS * 20
    rules = {rule.rule_id: rule for rule in RULES}
    for row in rows:
        pair = pairs[row["pair_id"]]
        state = render_conversation(pair.prompt, pair.response_text(row["response"]))
        true = probability(state, STATEMENT.format(rules[row["rule_id"]]))
        assert row["expected_rating"] == pytest.approx(true)


def test_a_small_budget_is_kept_although_a_prompt_is_read_for_each_question(study, server):
    """Before replies tell, ten times the bytes of a prompt are counted: 0.008 for the first."""
    how = {"price_input": 1.0, "price_output": 0.0, "budget": 0.005}
    report = report_of(opened(study, server, how))
    assert report.early_stop is not None
    assert num_requests(server) == 0


def test_failed_questions_are_asked_again_with_those_of_their_request_and_no_others(study, server):
    server.fault, server.every = "wordy_question", 5
    run = opened(study, server)
    report = report_of(run)
    num_failed = report.counts_by("null_reasons")["unreadable_answer"]
    assert 0 < num_failed < NUM_PAIRS * 2
    server.fault, num_before = "", num_requests(server)
    report = report_of(opened(study, server, {"retry_failed_prompts": True}))
    assert num_requests(server) - num_before == num_failed
    assert report.total("num_nulls") == 0
    assert report.total("num_ratings") == NUM_PAIRS * 20


def test_a_judge_that_refuses_every_question_ends_after_fifty_replies(study, server):
    server.fault = "refused_question"
    one_rule = {"layout": "paper", "limit": 10}
    with pytest.raises(
        NoRatingsError, match=r"hold no rating .*refusal.*use another judge.*--allow-nulls"
    ):
        report_of(opened(study, server, **one_rule))
    server.fault = "little_mass"
    with pytest.raises(NoRatingsError, match=r"low_label_mass.*\(25 % on the labels\)"):
        report_of(opened(study, server, **one_rule, min_label_mass=0.6))


def plan_of(study: Study, server: HostileServer, **changes: Any) -> tuple[LayoutCost, list[str]]:
    """Return the only layout of a plan and its notes, at 1 for a million prompt tokens."""
    options: dict[str, Any] = dict(config(**changes))
    subject = PlanRateConfig(**options, price_input=1, price_output=0)
    plan = plan_rating(study, subject, ReplyOptions(base_url=server.base_url))
    [cost] = plan.layouts.values()
    return cost, plan.notes


def test_a_plan_counts_requests(study, server, tmp_path):
    path = tmp_path / "many.toml"
    rules = "".join(f'[[rules]]\nrating_rule = "Rule {number}."\n' for number in range(70))
    path.write_text(f'name = "many"\n{rules}')
    for changes, num_calls in (
        ({}, 1),
        ({"layout": "paper"}, 10),
        ({"rules": str(path)}, 2),  # 64 questions and 6
        ({"rules": str(path), "judge": {"api": "decisions"}}, 1),
    ):
        cost, notes = plan_of(study, server, **changes)
        assert cost.num_calls == NUM_PAIRS * 2 * num_calls
        assert "--tokenizer" not in " ".join(notes)
    run = opened(study, server, rules=str(path), limit=2)
    assert run.manifest.calls_per_pair == 4
    assert report_of(run).total("num_calls") == num_requests(server) == 8
    how = {"budget_calls": 4 * 3}
    run = opened(study, server, how, rules=str(path), shard_size=1)
    assert report_of(run).total("num_calls") == 12


@pytest.mark.parametrize("api", ["systemone", "decisions"])
def test_a_plan_estimates_money_by_how_often_the_conversation_is_read(study, server, api):
    """Four bytes a token. At systemone each question is a prompt with the conversation."""
    questions = [STATEMENT.format(rule) for rule in RULES]
    groups = [[text] for text in questions] if api == "systemone" else [questions]
    num_bytes = sum(
        len(decision_prompt(state, texts).encode())
        for pair in records_of(read_pairs(study))
        for response in RESPONSES
        for state in [render_conversation(pair.prompt, pair.response_text(response))]
        for texts in groups
    )
    cost, _ = plan_of(study, server, judge={"api": api})
    assert cost.money == pytest.approx(num_bytes / 4 / 1e6, rel=1e-3)


def test_a_calibration_measures_the_tokens(study, server):
    options = dict(config())
    plan = plan_rating(
        study,
        PlanRateConfig(**options, calibrate=3, price_input=0.1, price_output=0),
        ReplyOptions(base_url=server.base_url),
    )
    cost = plan.layouts["all-rules"]
    assert (cost.num_calls, cost.prompt_tokens) == (NUM_PAIRS * 2, NUM_PAIRS * 2 * 1000)
    assert cost.money == pytest.approx(0.1 * NUM_PAIRS * 2 * 1000 / 1e6)


def test_the_check_asks_one_question_a_request(study, server):
    second = CheckConfig(check=5).second_run(config(scale="0,1,2"))
    assert (second.layout, second.limit, second.labels) == ("paper", 3, ("0", "1", "2"))
    run = open_run(study, second, RatingRunOptions(base_url=server.base_url))
    report_of(run)
    assert num_requests(server) == 60
    assert {len(body["questions"]) for body in server.bodies} == {1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decode": "text"}, "give --decode expected"),
        ({"layout": "demand-first"}, "--layout all-rules .all rules .* or paper"),
        ({"scale": ",".join("abcdefghijk")}, "11 labels: .* at most 10 levels"),
    ],
)
def test_ways_of_asking_that_a_decision_model_does_not_have_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        config(**changes)


def test_there_are_no_batch_files_of_decisions():
    judge = JudgeConfig(model=MODEL, backend="http", api="decisions")
    with pytest.raises(InputError, match="no --tokenizer or --api"):
        BatchJudge(judge, ServerOptions(base_url="http://one.example/v1"))
