"""The plan of a rating run: tokens and money by hand, what is missing, plan against actual."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from encore.core.errors import InputError
from encore.data.ingestion import ingest
from encore.data.study import Study, open_study
from encore.demo import DATA_PATHS, JUDGE_PATH
from encore.judges import open_judge
from encore.judges.judge_options import JudgeConfig
from encore.rating import rating_run
from encore.rating.rating_options import PlanRateConfig, RatingConfig, ReplyOptions
from encore.rating.rating_plan import LayoutCost, RatingPlan, plan_rating
from encore.rating.rating_run import RatingResult, rate
from encore.runs.worker import work_through
from tests.judges.hostile_server import KEY, MODEL, HostileServer, serving
from tests.rating.test_rating_run import opened
from tests.worlds.judges import ScriptedJudge
from tests.worlds.studies import create_study, numbered_pairs, shard_path, study_of


def plan(study: Study, folder: Path, **options: object) -> RatingPlan:
    judge = {"model": str(folder), **options.pop("judge", {})}
    replies = ReplyOptions(base_url=options.pop("base_url", None))
    config = PlanRateConfig.model_validate({"judge": judge, **options})
    return plan_rating(study, config, replies)


def test_tokens_and_money_follow_from_the_prompts(study, tiny_judge):
    blocks = {"engine_args": {"block_size": 16}}  # as on GPUs
    rating_plan = plan(study, tiny_judge, judge=blocks, price_input=2.0, price_output=10.0)
    assert rating_plan.num_pairs == 25
    rows = dict(rating_plan.layouts)
    all_rules = rows.pop("all-rules")
    assert all_rules.num_calls == 25 * 2
    reply = '{"1": 0.8, "2": 0.8, "3": 0.8, "4": 0.8, "5": 0.8, '
    reply += '"6": 0.8, "7": 0.8, "8": 0.8, "9": 0.8, "10": 0.8}'
    [ids] = open_judge(JudgeConfig(model=str(tiny_judge))).tokenizer.encode_text([reply])
    assert all_rules.output_tokens == 50 * (len(ids) + 1)
    assert [*rows] == ["paper", "conversation-first", "demand-first"]
    for row in rows.values():
        assert row.num_calls == 25 * 2 * 10
        # "0", ".", "8" and the end: four tokens each.
        assert row.output_tokens == 4 * row.num_calls
    computed = [row.computed_tokens for row in rows.values()]
    assert computed == sorted(computed, reverse=True)
    row = rows["paper"]
    prompts, replies = row.prompt_tokens * 2e-6, row.output_tokens * 1e-5
    assert row.money == pytest.approx(prompts + replies)
    assert row.hours is None
    assert rating_plan.notes == []


def test_a_layout_that_the_options_rule_out_is_not_planned(study, tiny_judge):
    layouts = ["paper", "conversation-first", "demand-first"]
    assert [*plan(study, tiny_judge, decode="expected").layouts] == layouts
    # A reply to ten rules may have 512 + 9 x 16 tokens, which is more than the context.
    options = {"judge": {"max_model_len": 600}, "max_reply_tokens": 512}
    assert [*plan(study, tiny_judge, **options).layouts] == layouts


def test_a_plan_without_pilot_and_prices_names_the_options_that_it_lacks(study, tiny_judge):
    rating_plan = plan(study, tiny_judge)
    rows = rating_plan.layouts.values()
    assert {(row.hours, row.money) for row in rows} == {(None, None)}
    assert "not measured on this device: --calibrate" in rating_plan.hours_origin
    assert "--price-gpu-hour" in rating_plan.notes[0]
    for_50 = plan(study, tiny_judge, pairs=50).layouts["paper"]  # twice the study's 25
    assert for_50.num_calls == 2 * rating_plan.layouts["paper"].num_calls == 1000
    assert for_50.prompt_tokens == 2 * rating_plan.layouts["paper"].prompt_tokens
    [note] = plan(study, tiny_judge, price_input=1.0).notes
    assert note == "the money is without output tokens: give --price-output"


def texts_of(study: Study) -> list[str]:
    """Return the prompts of a study under the default rules, as a judge that reads texts has."""
    judge = ScriptedJudge(reads_texts=True)
    config = RatingConfig(judge=JudgeConfig(model="scripted"))
    work_through(rating_run.open_run(study, config, judge=judge).job())
    return judge.asked


def test_a_server_without_a_tokenizer_gets_calls_counted_and_tokens_calibrated(study, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    prices = {"price_input": 2.0, "price_output": 10.0}
    with serving(HostileServer()) as server:
        served = {"judge": {"backend": "http"}, "base_url": server.base_url}
        uncalibrated = plan(study, Path(MODEL), **served, **prices)
        # A prompt's bytes are 4 a token, and a reply has 4 tokens of at most 16.
        num_bytes = sum(len(prompt.encode()) for prompt in texts_of(study))
        middle = num_bytes / 4 * 2e-6 + 500 * 4 * 10e-6
        expected = LayoutCost(num_calls=500, hours=None, money=pytest.approx(middle))
        assert uncalibrated.layouts == {"paper": expected}
        low = num_bytes / 5 * 2e-6 + 500 * 2 * 10e-6
        high = num_bytes / 3 * 2e-6 + 500 * 16 * 10e-6
        assert f"between {low:.4g} and {high:.4g}" in uncalibrated.notes[0]
        assert "--tokenizer" in uncalibrated.notes[1]
        assert server.num_requests.total() == 0  # nothing is asked for a plan
        calibrated = plan(study, Path(MODEL), **served, calibrate=5, **prices)
    row = calibrated.layouts["paper"]
    # The server says 100 tokens of a prompt, 60 of them from its cache, and 4 of a reply.
    assert (row.prompt_tokens, row.computed_tokens, row.output_tokens) == (50_000, 20_000, 2000)
    assert row.hours > 0
    assert row.money == pytest.approx(0.1 + 0.02)
    assert calibrated.notes == []


RULE = """
[[rules]]
title = "{0}"
description = "{0}"
preference_rule = "{0}"
rating_rule = "{1}"
"""


@pytest.mark.parametrize(
    ("reads_texts", "num_bytes", "advice"),
    [
        # In bytes, under three rules of N. The paper's computes a pair's P bytes three times,
        # and 23 + 2 + 57 + 7 bytes around each conversation: 3 P + 6 x 89. With the demand first,
        # P is computed once, and 27 + N + 8 bytes of each rule: P + 6 (N + 35). P is 278.8:
        # 11 + 36 x 7 of "Question 0? please …", 9 of "Answer 0." and 5 of "No 0.", and three more
        # in 15 of the 25 pairs. 3 x 278.8 + 534 < 278.8 + 6 (N + 35) holds from N = 147 on.
        (True, 146, None),
        (True, 147, "0% fewer bytes"),
        # In tokens, a byte each, under much shorter and much longer rules.
        (False, 10, None),
        (False, 1000, "% fewer tokens"),
    ],
)
def test_the_plan_says_when_rules_are_so_long_that_the_papers_layout_computes_least(
    tmp_path, monkeypatch, reads_texts, num_bytes, advice
):
    judge = ScriptedJudge(reads_texts=reads_texts)
    monkeypatch.setattr(rating_run, "open_judge", lambda *_: judge)
    study = open_study(study_of(numbered_pairs(25, num_extra_words=36), tmp_path / "study"))
    rules = tmp_path / "rules.toml"
    rules.write_text('name = "long"\n' + "".join(RULE.format(n, n * num_bytes) for n in "abc"))
    notes = plan(study, Path("scripted"), rules=str(rules)).notes
    advised = [note for note in notes if "--layout paper computes least" in note]
    assert len(advised) == (advice is not None)
    assert all(advice in note for note in advised)


def test_a_study_without_pairs_is_refused(tiny_judge, tmp_path):
    with pytest.raises(InputError, match="no pairs"):
        plan(create_study(tmp_path / "empty"), tiny_judge)


def test_a_calibration_is_a_run_whose_ratings_stay(study, monkeypatch):
    judge = ScriptedJudge()
    monkeypatch.setattr(rating_run, "open_judge", lambda *_: judge)
    prices = {"count": 4, "price_gpu_hour": 2.0}
    rating_plan = plan(study, Path("scripted"), calibrate=5, **prices)
    assert judge.num_asked == 5 * 20
    pilot, row = rating_plan.calibration, rating_plan.layouts["paper"]
    assert pilot.num_pairs == 5
    assert pilot.tokens.num_calls == 100
    assert row.output_tokens == 3 * 500  # "0.1": three of this judge's tokens
    tokens = pilot.tokens.computed_tokens + pilot.tokens.output_tokens
    work = row.computed_tokens + row.output_tokens
    # Four machines like this one take a quarter of the time, and cost as much.
    assert row.hours == pytest.approx(pilot.seconds / tokens * work / 3600 / 4)
    assert row.money == pytest.approx(2.0 * pilot.seconds / tokens * work / 3600)
    # A second calibration asks nothing, and reads what the first one took.
    again = plan(study, Path("scripted"), calibrate=5, **prices)
    assert (judge.num_asked, again.calibration.tokens) == (100, pilot.tokens)
    assert again.hours_origin == "measured on 5 pairs by an earlier call"
    assert again.calibration.startup_seconds is None
    assert again.layouts["paper"].hours == pytest.approx(row.hours, rel=0.5, abs=1e-5)
    # A run of all pairs takes them over. A larger calibration takes all over, and measures nothing.
    report = work_through(opened(study, judge).job())
    assert report.computed("num_known") == 100
    assert judge.num_asked == 500
    copied = plan(study, Path("scripted"), calibrate=6)
    assert copied.layouts["paper"].hours is None
    assert "calibrate more pairs" in copied.hours_origin


def test_plan_and_actual_cost_are_compared_for_the_shards_of_a_call(study):
    run = opened(study)
    report = work_through(run.job())
    compared = RatingResult(run=run, report=report).plan
    for name in ("num_calls", "prompt_tokens"):
        assert compared[name]["planned"] == compared[name]["actual"] > 0
    assert compared["seconds"] == {"planned": None, "actual": report.seconds}
    assert RatingResult(run=run, report=work_through(run.job())).plan == {}  # nothing was rated
    shard_path(run.run_dir, 2).unlink()
    compared = RatingResult(run=run, report=work_through(run.job())).plan
    assert compared["num_calls"] == {"planned": 5 * 20, "actual": 5 * 20}  # 25 pairs, 10 a shard


@pytest.mark.full
@pytest.mark.parametrize("layout", ["paper", "conversation-first", "demand-first"])
@pytest.mark.parametrize(("num_calibrated", "error_of_replies"), [(60, 0), (10, 0.05)])
def test_a_calibrated_plan_counts_what_a_real_engine_computes(
    layout, num_calibrated, error_of_replies, tmp_path
):
    """On the demo's pairs and judge, whose prompts take blocks of 32 tokens.

    Tokens of replies are exact if all 60 pairs are calibrated; 10 pairs are a sample of them.
    """
    ingest([f"hh={DATA_PATHS['synthetic-hh']}"], out=tmp_path / "planned")
    shutil.copytree(tmp_path / "planned", tmp_path / "rated")
    options = {"layout": layout, "limit": 60}
    rating_plan = plan(
        open_study(tmp_path / "planned"), JUDGE_PATH, **options, calibrate=num_calibrated
    )
    row = rating_plan.layouts[layout]
    assert row.hours > 0
    judge = JudgeConfig(model=str(JUDGE_PATH))
    report = rate(tmp_path / "rated", RatingConfig(judge=judge, **options)).report
    for name, tolerance in {
        "num_calls": 0,
        "prompt_tokens": 0,
        "computed_tokens": 0.02,
        "output_tokens": error_of_replies,
    }.items():
        assert getattr(row, name) == pytest.approx(report.total(name), rel=tolerance), name
