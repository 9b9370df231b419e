"""A run stops early when its weights are precise enough, or when its budget is used up."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from pydantic import ValidationError

from encore.core.errors import EncoreError, InputError
from encore.core.reporting import Reporter
from encore.data.pairs import planned_pairs, read_pairs, records_of
from encore.data.rating_runs import run_status
from encore.data.study import open_study
from encore.rating import rating_run, stop_rules
from encore.rating.rating_options import PricesConfig, RatingConfig, RatingRunOptions
from encore.rating.rating_run import rate
from encore.runs.shard_files import ShardState
from encore.runs.worker import RunReport
from encore.weighting.weigh import weights
from tests.golden.command_line import Finished, encore
from tests.worlds.judges import ScriptedJudge
from tests.worlds.studies import numbered_pairs, study_of, write_rules

pytestmark = pytest.mark.services

NUM_PAIRS, SHARD_SIZE = 400, 20
CALLS = 4 * SHARD_SIZE  # of a shard: two responses under two rules
PRICES = {"price_input": 2.0, "price_output": 10.0}


def some_score(prompt: str) -> str:
    """Return 0.7, 0.8 or 0.9, as the prompt decides."""
    return f"{(hashlib.sha256(prompt.encode()).digest()[0] % 3 + 7) / 10:.1f}"


@dataclass
class Bench:
    """A study, the judge that rates it, and the messages on precision of the latest call."""

    study: Path
    judge: ScriptedJudge = field(default_factory=lambda: ScriptedJudge(some_score))
    messages: list[str] = field(default_factory=list)

    @property
    def rules(self) -> str:
        return str(self.study.parent / "rules.toml")

    def rate(self, **limits: Any) -> RunReport:
        """Rate with limits; the judge's prompts and the messages are those of this call."""
        self.judge.asked, reporter = [], Mock(spec=Reporter)
        config = RatingConfig(judge={"model": "scripted"}, rules=self.rules, shard_size=SHARD_SIZE)
        report = rate(self.study, config, RatingRunOptions(**limits), reporter=reporter).report
        texts = [message.args[0] for message in reporter.message.call_args_list]
        self.messages = [text for text in texts if "pairs rated" in text]
        return report

    def rate_by_command(self, *limits: object) -> Finished:
        plan = ("--judge", "scripted", "--shard-size", SHARD_SIZE, "--rules", self.rules)
        return encore("rate", self.study, *plan, *limits)

    @property
    def run_dir(self) -> Path:
        [run_dir] = (self.study / "ratings").iterdir()
        return run_dir

    def weights(self) -> np.ndarray:
        return np.array(weights(self.study).weights)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a study whose plan has rounds of 5, 7, 10, 15 and 20 shards."""
    monkeypatch.setattr(stop_rules, "_FIRST_PAIRS", 5 * SHARD_SIZE)
    write_rules(tmp_path / "rules.toml", ["kind", "brief"])
    bench = Bench(study_of(numbered_pairs(NUM_PAIRS), tmp_path / "study"))
    monkeypatch.setattr(rating_run, "open_judge", lambda *_: bench.judge)
    return bench


# --- precise weights ----------------------------------------------------------------------------


def test_a_run_stops_when_its_weights_are_precise_and_goes_on_with_a_smaller_tolerance(bench):
    report = bench.rate(until_weights_within=0.02)
    num_rated = report.count("rated")
    assert num_rated in (7, 10)
    assert bench.judge.num_asked == num_rated * CALLS
    assert report.early_stop is not None
    assert report.early_stop.is_success
    saved = 1 - num_rated / 20
    assert f"saves {(20 - num_rated) * CALLS:,} calls, {saved:.1%} of the plan" in report.message
    assert bench.messages[0].startswith("100 of 400 pairs rated, every weight at tau 2 within 2.")
    assert "the next round ends with 140 pairs" in bench.messages[0]
    early_R = bench.weights()
    assert np.ptp(early_R) > 0

    report = bench.rate(until_weights_within=0.03)  # the finished shards are enough
    assert (report.count("rated"), bench.judge.num_asked) == (0, 0)
    report = bench.rate(until_weights_within=0.004)
    assert report.early_stop is None or report.early_stop.is_success
    assert report.count("reused") == num_rated
    assert report.count("rated") > 0
    report = bench.rate()
    assert (len(report.outcomes), report.early_stop) == (20, None)
    assert np.abs(early_R / bench.weights() - 1).max() <= 0.02


def test_the_rule_and_its_messages_are_about_the_weights_at_the_tau_that_was_asked_for(bench):
    bench.rate(until_weights_within=0.02)
    at_2 = bench.messages[0]
    assert "every weight at tau 2 within" in at_2
    run_dir = bench.run_dir
    report = bench.rate(until_weights_within=0.02, tau=0.5)
    assert bench.run_dir == run_dir  # the same run goes on: its key does not have tau
    assert report.count("rated") > 0  # four times the error needs more pairs
    assert all("at tau 0.5" in message for message in bench.messages)
    # The round that was enough at tau 2 has four times its error at tau 0.5, as weights are close
    # to equal: 2 % or more.
    percent = float(bench.messages[0].partition("within ")[2].partition("%")[0])
    assert percent > 2


def test_commands_take_a_run_that_stopped_as_complete_while_its_shards_are_there(bench):
    finished = bench.rate_by_command("--until-weights-within", 0.02, "--json")
    assert finished.code == 0, finished.err
    assert finished.json["ending"]["is_enough"]
    message = " ".join(finished.err.split())
    assert re.search(r"enough: .*; \d+ of 20 shards are kept next", message)
    assert "next: encore analyze" in finished.err
    for name in ("analyze", "weights", "status"):
        finished = encore(name, bench.study)
        assert finished.code == 0, finished.err
        assert "needs no more" in finished.out + finished.err
    next(bench.run_dir.glob("shard-00003.*")).unlink()
    for name in ("analyze", "status"):
        finished = encore(name, bench.study)
        assert finished.code == 3
        assert "needs no more" not in finished.out + finished.err


def test_a_failed_shard_ends_the_run_with_its_round_and_no_precision_is_claimed(bench):
    [first] = records_of(planned_pairs(read_pairs(open_study(bench.study)), limit=1))
    question = first.prompt[0].content

    def script(prompt: str) -> str:
        if question in prompt:
            raise RuntimeError("the device fell off the bus")
        return some_score(prompt)

    bench.judge.script = script
    report = bench.rate(until_weights_within=0.5)
    assert ([*report.failures], len(report.outcomes)) == ([0], 4)  # the first round
    assert report.early_stop is None
    assert not (bench.run_dir / "enough.json").exists()
    finished = bench.rate_by_command("--until-weights-within", 0.5)
    assert finished.code == 3
    assert "the device fell off the bus" in finished.err
    assert "enough" not in finished.err
    bench.judge.script = some_score
    assert bench.rate(until_weights_within=0.5).count("rated") == 1


def test_with_a_rule_without_ratings_the_plan_is_rated_to_its_end(bench):
    bench.judge.script = lambda prompt: "0.5" if "Rule kind" in prompt else "I do not know"
    report = bench.rate(until_weights_within=0.02)
    assert (len(report.outcomes), report.early_stop) == (20, None)
    assert len(bench.messages) == 4
    assert all("rule brief has 0 ratings" in message for message in bench.messages)


def test_equal_ratings_are_not_precise_after_the_first_round(bench):
    bench.judge.script = lambda _prompt: "0.5"
    report = bench.rate(until_weights_within=0.02)  # 200 equal ratings: another one may come
    assert len(report.outcomes) == 7
    assert report.early_stop is not None
    assert report.early_stop.is_success


# --- a budget -----------------------------------------------------------------------------------


def test_a_budget_of_calls_is_never_exceeded_and_a_larger_one_goes_on(bench):
    report = bench.rate(budget_calls=6 * CALLS + 20)
    assert bench.judge.num_asked == report.total("num_calls") == 6 * CALLS
    assert report.early_stop is not None
    assert not report.early_stop.is_success
    assert "480 calls spent" in report.message
    assert "14 of 20 shards are left" in report.message
    bench.rate(budget_calls=6 * CALLS + 20)
    assert bench.judge.num_asked == 0
    finished = bench.rate_by_command("--budget-calls", 8 * CALLS)
    assert finished.code == 3
    assert "larger --budget-calls goes on" in finished.err
    assert sum(shard.state == "done" for shard in run_status(bench.run_dir).shards) == 8
    assert bench.rate(budget_calls=20 * CALLS).early_stop is None


def test_a_budget_below_the_cost_of_one_shard_is_refused_before_the_first_call(bench, monkeypatch):
    monkeypatch.setattr(bench.judge, "start", lambda: pytest.fail("started"), raising=False)
    with pytest.raises(InputError, match=r"first shard of 20 pairs takes up to 80 calls"):
        bench.rate(budget_calls=CALLS - 1)


def test_the_first_shard_shows_what_the_tokens_of_other_shards_cost(bench):
    def cost_of(report: RunReport) -> float:
        # A token is a byte: some 400 of a prompt and three of a reply, at 2 and 10 a million.
        assert report.total("output_tokens") == 3 * CALLS * len(report.outcomes)
        return (2 * report.total("prompt_tokens") + 10 * report.total("output_tokens")) / 1e6

    first = bench.rate(budget=1e-9, **PRICES)
    assert len(first.outcomes) == 1  # the cost of a shard is not known before
    assert len(bench.rate(budget=1e-9, **PRICES).outcomes) == 1
    report = bench.rate(budget=4.5 * cost_of(first), **PRICES)
    assert len(report.outcomes) == 4
    assert f"{cost_of(report):,.10g} spent" in report.message


def test_a_budget_in_money_ends_a_run_whose_calls_cost_nothing(bench):
    with pytest.raises(EncoreError, match=r"cost nothing .* use --budget-calls"):
        bench.rate(budget=1.0, price_input=0.0, price_output=0.0)
    assert bench.judge.num_asked == CALLS


def test_money_covers_the_engines_gpus_and_the_tokens():
    # 1,800 s on 4 GPUs are 2 GPU hours at 3; 2M and 0.5M tokens at 2 and 10 are 9 more.
    footer = {"prompt_tokens": 2_000_000, "output_tokens": 500_000, "engine_seconds": 1800.0}
    hours = PricesConfig(price_gpu_hour=3)
    assert stop_rules.money(footer, prices=hours, num_devices=4) == 6.0
    assert stop_rules.money(footer, prices=PricesConfig(**PRICES), num_devices=4) == 9.0
    assert stop_rules.num_calls({"num_ratings": 70, "num_nulls": 10}) == 80  # not recorded


def test_shards_without_a_recorded_cost_do_not_change_the_expected_cost():
    manifest: Any = SimpleNamespace(
        shards=[SimpleNamespace(index=i, num_pairs=5) for i in range(9)]
    )

    def opened(*footers: dict[str, Any]) -> int:
        budget = stop_rules.Budget(
            "--budget", 3.5, manifest, cost=lambda footer: footer.get("cost", 0)
        )
        states = [
            ShardState(index=i, state="done", footer=footer) for i, footer in enumerate(footers)
        ]
        budget.update(states[:1])
        budget.update(states)  # the first one counts once
        return budget.num_open_shards

    old = {"num_ratings": 50, "num_nulls": 0}
    assert opened() == 1
    assert opened(old, old) == 3
    assert opened(old, old, {"num_calls": 50, "cost": 1.0}) == 5  # two more, for 1.0 each
    assert opened(old, old, {"num_calls": 50, "cost": 4.0}) == 3
    assert opened({"num_calls": 50, "cost": 1.0}, old, old) == 5


def test_the_first_of_several_limits_ends_the_run(bench):
    report = bench.rate(until_weights_within=0.02, budget_calls=3 * CALLS)
    assert (len(report.outcomes), report.early_stop is not None) == (3, True)
    assert "--budget-calls 240" in report.message
    report = bench.rate(until_weights_within=0.02, budget_calls=19 * CALLS)
    assert "enough: " in report.message


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"until_weights_within": 0.02, "slice": "0/2"}, "--until-weights-within with --slice"),
        ({"budget_calls": 9, "slice": "0/2"}, "--budget-calls with --slice"),
        ({"budget_calls": 9, "shard": (1,)}, "--budget-calls with --shard"),
        ({"budget": 9.0}, "--budget needs --price-input and --price-output"),
        ({"budget": 9.0, "price_input": 1.0}, "--budget needs --price-input and --price-output"),
        ({"until_weights_within": 1.0}, "less than 1"),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(limits, message):
    with pytest.raises(ValidationError, match=message):
        RatingRunOptions.model_validate(limits)
