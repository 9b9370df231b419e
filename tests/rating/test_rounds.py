"""A run that ends when its weights are sure enough, or when its budget is used up."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from encore.analysis.analyze import analyze
from encore.core.errors import EncoreError, InputError
from encore.core.reporting import Reporter
from encore.data.ingestion import ingest
from encore.data.pairs import planned_pairs, read_pairs, records_of
from encore.data.rating_runs import run_status
from encore.data.study import open_study
from encore.rating import rating_run, rounds
from encore.rating.rating_config import PricesConfig, RateConfig
from encore.rating.rating_run import open_run
from encore.runs.run_files import ShardState
from encore.runs.shard_runner import RunReport, work_through
from tests.golden.command_line import Finished, encore
from tests.worlds.judges import ScriptedJudge

NUM_PAIRS, SHARD_SIZE = 400, 20
CALLS = 4 * SHARD_SIZE  # of a shard: two responses under two rules
RULE = """[[rules]]
rule_id = "{0}"
title = "{0}"
description = "{0}"
preference_rule = "Which one is {0}?"
rating_rule = "Is it {0}?"
"""
PRICES = {"price_input": 2.0, "price_output": 10.0}


def some_score(prompt: str) -> str:
    """0.7, 0.8 or 0.9, by the prompt."""
    return f"{(hashlib.sha256(prompt.encode()).digest()[0] % 3 + 7) / 10:.1f}"


class Heard(Reporter):
    """Keeps what is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


@dataclass
class Bench:
    """A study, and what calls on it did: the calls of the judge, what was told."""

    study: Path
    judge: ScriptedJudge = field(default_factory=lambda: ScriptedJudge(some_score))
    heard: Heard = field(default_factory=Heard)

    @property
    def options(self) -> dict[str, Any]:
        rules = str(self.study.parent / "rules.toml")
        return {"judge": {"model": "scripted"}, "rules": rules, "shard_size": SHARD_SIZE}

    def rate(self, **limits: Any) -> RunReport:
        self.judge.asked, self.heard.lines = [], []
        config = RateConfig(study=self.study, **self.options, **limits)
        run = open_run(open_study(self.study), config, judge=self.judge)
        return work_through(run.job(reporter=self.heard), reporter=self.heard)

    def command(self, name: str, *options: object) -> Finished:
        given = ()
        if name == "rate":
            given = ("--judge", "scripted", "--shard-size", SHARD_SIZE)
            given += ("--rules", self.options["rules"])
        return encore(name, self.study, *given, *options)

    @property
    def run_dir(self) -> Path:
        [run_dir] = (self.study / "ratings").iterdir()
        return run_dir

    def weights(self) -> np.ndarray:
        found = analyze(self.study).rules
        mass_R = np.exp([-(rule.entropy_nats or 0.0) / 2 for rule in found])
        return mass_R / mass_R.sum()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Rounds of 5, 7, 10, 15 and 20 shards."""
    monkeypatch.setattr(rounds, "_FIRST_PAIRS", 5 * SHARD_SIZE)
    rules = "".join(RULE.format(name) for name in ("kind", "brief"))
    (tmp_path / "rules.toml").write_text(f'name = "two"\n{rules}')
    rows = [
        {"prompt": f"Q {i}?", "chosen": f"A {i}.", "rejected": f"N {i}."} for i in range(NUM_PAIRS)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    ingest([f"mine={tmp_path / 'pairs.jsonl'}"], out=tmp_path / "study")
    found = Bench(tmp_path / "study")
    monkeypatch.setattr(rating_run, "open_judge", lambda _config: found.judge)
    return found


# --- enough -------------------------------------------------------------------------------------


def test_a_run_stops_when_enough_is_known_and_goes_on_with_a_smaller_tolerance(
    bench: Bench,
) -> None:
    report = bench.rate(until_weights_within=0.02)
    num_rated = report.count("rated")
    assert num_rated in (7, 10)
    assert bench.judge.num_asked == num_rated * CALLS
    assert report.early_stop is not None
    assert report.early_stop.is_success
    saved = 1 - num_rated / 20
    assert f"saves {(20 - num_rated) * CALLS:,} calls, {saved:.1%} of the plan" in report.message
    assert bench.heard.lines[0].startswith("100 of 400 pairs rated, every weight within 2.")
    assert "the next round ends with 140 pairs" in bench.heard.lines[0]
    early_R = bench.weights()

    report = bench.rate(until_weights_within=0.03)  # what is there is enough: nothing is asked
    assert (report.count("rated"), bench.judge.num_asked) == (0, 0)
    report = bench.rate(until_weights_within=0.004)
    assert report.early_stop is None or report.early_stop.is_success
    assert report.count("reused") == num_rated
    assert report.count("rated") > 0
    report = bench.rate()
    assert (len(report.outcomes), report.early_stop) == (20, None)
    assert np.abs(early_R / bench.weights() - 1).max() <= 0.02


def test_a_run_that_stopped_is_whole_for_who_reads_it_as_long_as_its_shards_are_there(
    bench: Bench,
) -> None:
    finished = bench.command("rate", "--until-weights-within", 0.02, "--json")
    assert finished.code == 0, finished.err
    assert finished.json["ending"]["is_enough"]
    assert "enough: " in finished.err
    assert "next: encore analyze" in finished.err
    for name in ("analyze", "weights", "status"):
        finished = bench.command(name)
        assert finished.code == 0, finished.err
        assert "needs no more" in finished.out + finished.err
    next(bench.run_dir.glob("shard-00003.*")).unlink()
    for name in ("analyze", "status"):
        finished = bench.command(name)
        assert finished.code == 3
        assert "needs no more" not in finished.out + finished.err


def test_a_shard_that_fails_ends_the_run_with_its_round_and_nothing_is_promised(
    bench: Bench,
) -> None:
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
    finished = bench.command("rate", "--until-weights-within", 0.5)
    assert finished.code == 3
    assert "the device fell off the bus" in finished.err
    assert "enough" not in finished.err
    bench.judge.script = some_score
    assert bench.rate(until_weights_within=0.5).count("rated") == 1


def test_a_rule_without_ratings_promises_nothing_and_the_plan_is_rated_to_its_end(
    bench: Bench,
) -> None:
    bench.judge.script = lambda prompt: "0.5" if "kind" in prompt else "I do not know"
    report = bench.rate(until_weights_within=0.02)
    assert (len(report.outcomes), report.early_stop) == (20, None)
    assert len(bench.heard.lines) == 4
    assert all("rule brief has 0 ratings" in line for line in bench.heard.lines)


def test_a_judge_that_always_says_the_same_is_not_sure_at_once(bench: Bench) -> None:
    bench.judge.script = lambda _prompt: "0.5"
    report = bench.rate(until_weights_within=0.02)  # 200 equal ratings: another one may come
    assert len(report.outcomes) == 7
    assert report.early_stop is not None
    assert report.early_stop.is_success


# --- a budget -----------------------------------------------------------------------------------


def test_a_budget_of_calls_is_never_exceeded_and_a_larger_one_goes_on(bench: Bench) -> None:
    report = bench.rate(budget_calls=6 * CALLS + 20)
    assert bench.judge.num_asked == report.total("num_calls") == 6 * CALLS
    assert report.early_stop is not None
    assert not report.early_stop.is_success
    assert "480 calls spent" in report.message
    assert "14 of 20 shards are left" in report.message
    bench.rate(budget_calls=6 * CALLS + 20)
    assert bench.judge.num_asked == 0
    finished = bench.command("rate", "--budget-calls", 8 * CALLS)
    assert finished.code == 3
    assert "larger --budget-calls goes on" in finished.err
    assert sum(one.state == "done" for one in run_status(bench.run_dir).shards) == 8
    assert bench.rate(budget_calls=20 * CALLS).early_stop is None


def test_a_budget_that_not_even_one_shard_fits_into_is_refused_before_the_first_call(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.judge, "start", lambda: pytest.fail("started"), raising=False)
    with pytest.raises(InputError, match=r"first shard of 20 pairs takes up to 80 calls"):
        bench.rate(budget_calls=CALLS - 1)


def test_money_is_what_tokens_cost_and_the_first_shard_tells_what_others_will(bench: Bench) -> None:
    # A token is a byte: some 400 of a prompt and three of a reply, at 2 and 10 a million.
    one = bench.rate(budget=1e-9, **PRICES)
    assert len(one.outcomes) == 1  # what a shard costs is not known before
    assert len(bench.rate(budget=1e-9, **PRICES).outcomes) == 1
    prompt, output = one.total("prompt_tokens"), one.total("output_tokens")
    assert output == 3 * CALLS
    cost = (2 * prompt + 10 * output) / 1e6
    report = bench.rate(budget=4.5 * cost, **PRICES)
    assert len(report.outcomes) == 4
    spent = (2 * report.total("prompt_tokens") + 10 * report.total("output_tokens")) / 1e6
    assert f"{spent:,.10g} spent" in report.message


def test_calls_that_cost_nothing_by_what_was_counted_end_the_run(bench: Bench) -> None:
    with pytest.raises(EncoreError, match=r"cost nothing .* use --budget-calls"):
        bench.rate(budget=1.0, price_input=0.0, price_output=0.0)
    assert bench.judge.num_asked == CALLS


def test_money_is_what_the_engines_gpus_cost() -> None:
    # 1,800 s on 4 GPUs are 2 GPU hours at 3; 2M and 0.5M tokens at 2 and 10 are 9 more.
    footer = {"prompt_tokens": 2_000_000, "output_tokens": 500_000, "engine_seconds": 1800.0}
    hours = PricesConfig(price_gpu_hour=3)
    assert rounds.money(footer, prices=hours, num_devices=4) == 6.0
    assert rounds.money(footer, prices=PricesConfig(**PRICES), num_devices=4) == 9.0
    assert rounds.num_calls({"num_ratings": 70, "num_nulls": 10}) == 80  # of an earlier version


def test_shards_that_do_not_say_what_they_cost_teach_nothing() -> None:
    manifest: Any = SimpleNamespace(
        shards=[SimpleNamespace(index=i, num_pairs=5) for i in range(9)]
    )
    budget = rounds.Budget("--budget", 3.5, manifest, cost=lambda footer: footer.get("cost", 0))

    def opened(*footers: dict[str, Any]) -> int:
        states = [ShardState(index=i, state="done", footer=one) for i, one in enumerate(footers)]
        budget.update(states)
        return budget.num_open_shards

    old = {"num_ratings": 50, "num_nulls": 0}
    assert opened() == 1
    assert opened(old, old) == 3
    assert opened(old, old, {"num_calls": 50, "cost": 1.0}) == 5  # two more, for 1.0 each
    assert opened(old, old, {"num_calls": 50, "cost": 4.0}) == 3


def test_the_nearest_of_several_limits_ends_the_run(bench: Bench) -> None:
    report = bench.rate(until_weights_within=0.02, budget_calls=3 * CALLS)
    assert (len(report.outcomes), report.early_stop is not None) == (3, True)
    assert "--budget-calls 240" in report.message
    report = bench.rate(until_weights_within=0.02, budget_calls=19 * CALLS)
    assert "enough: " in report.message


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"until_weights_within": 0.02, "slice": "0/2"}, "--until-weights-within with --slice"),
        ({"budget_calls": 9, "slice": "0/2"}, "--budget-calls with --slice"),
        ({"budget_calls": 9, "shard": (1,)}, "--budget-calls with --shard"),
        ({"budget": 9.0}, "--budget needs --price-input and --price-output"),
        ({"budget": 9.0, "price_input": 1.0}, "--budget needs --price-input and --price-output"),
        ({"until_weights_within": 1.0}, "less than 1"),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RateConfig.model_validate({"study": "s", "judge": {"model": "m"}, **given})
