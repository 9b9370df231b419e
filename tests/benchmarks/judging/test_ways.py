"""What a judge must be warned of goes with its results into every table; weights have an origin."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from encore.benchmarks.judging import ways
from encore.benchmarks.judging.driver import JudgingProgress
from encore.benchmarks.judging.pairwise import read_judged_pairs
from encore.benchmarks.judging.rated import rate_benchmark, study_of_pairs
from encore.benchmarks.judging.report import JudgeReport, JudgingRequest
from encore.benchmarks.judging.ways import judge_benchmark
from encore.benchmarks.pairs import BenchmarkPairs
from encore.benchmarks.render import render
from encore.benchmarks.results import read_pair_results
from encore.benchmarks.rows import compared, reward_row, stored_rows
from encore.benchmarks.table import BenchmarkTable, make_table
from encore.cli.judge_tables import print_judge_tables
from encore.config import JudgeConfig, RatingConfig
from encore.data.pairs import read_manifest
from encore.data.rules import load_rule_set
from encore.demo import judge_path
from encore.errors import InputError
from encore.model_files import folder_digest
from encore.weighting.vector import Origin, Provenance, WeightVector
from encore.weighting.weigh import weights as weigh
from tests.benchmarks.judging.scripted import (
    benchmark_of,
    index_in,
    judge_saying,
    make_benchmark,
    make_pair,
    verdict_of,
)
from tests.benchmarks.judging.test_rating_reward import RULES_TOML
from tests.benchmarks.judging.test_rating_reward import say as say_rating
from tests.scripted_judge import ScriptedJudge


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> ScriptedJudge:
    """Stands in for the engine: right about every pair; kind and long rate as their names say."""

    def say(prompt: str) -> str:
        return verdict_of("right", prompt) if "[[A]]" in prompt else say_rating(prompt)

    made = judge_saying(say)
    for place in ("encore.benchmarks.judging.pairwise", "encore.rating.rating_run"):
        monkeypatch.setattr(f"{place}.open_judge", lambda config: made)
    return made


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(RULES_TOML)
    return path


def vector(kind: float, *, uses_labels: bool = False, **origin: object) -> WeightVector:
    """Weights of the two rules, with what is said of where they come from."""
    return WeightVector(
        scheme="encore",
        params={"tau": 2.0},
        rule_ids=("kind", "long"),
        weights=(kind, 1 - kind),
        provenance=Provenance(
            uses_labels=uses_labels,
            uses_benchmark=False,
            tau=2.0,
            num_ratings=1,
            num_nulls=0,
            num_pairs=1,
            num_pairs_used=None,
            origin=Origin(**origin),  # type: ignore[arg-type]
            encore_version="1",
        ),
    )


def judged(pairs: BenchmarkPairs, rules: Path, by: str = "pair", **more: object) -> JudgeReport:
    config = RatingConfig(judge=JudgeConfig(model="scripted"), rules=str(rules), shard_size=50)
    usual = {"config": config, "out": rules.parent / "judged"}
    protocol = None if by == "rating" else "verdict-only"
    request = JudgingRequest(**{"by": by, "protocol": protocol, **usual, **more})  # type: ignore[arg-type]
    return judge_benchmark(pairs, request)


def table_with(report: JudgeReport, pairs: BenchmarkPairs) -> BenchmarkTable:
    """The judge's file as a row beside a reward model that is right about everything."""
    model = reward_row("model", np.array([[1.0, 0.0]] * pairs.num_pairs), pairs=pairs)
    rows = compared([model, *stored_rows(report.results, pairs=pairs)], pairs=pairs)
    return make_table(rows, pairs=pairs)


# --- what a table must say ------------------------------------------------------------------------


def test_a_judge_that_always_answers_a_is_named_in_the_table(judge, rules):
    """Its row reads 50.0 | 50.0-50.0: without a word that would look like certainty."""
    judge.script = lambda _: "[[A]]"
    pairs = make_benchmark(8)
    report = judged(pairs, rules)
    table = table_with(report, pairs)
    row = table.lines[1].row
    assert (row.score.headline.ci_low, row.score.headline.ci_high) == pytest.approx((0.5, 0.5))
    assert row.p_value is None
    [note] = [note for note in table.notes if "always answers A" in note]
    assert "neither its accuracy nor the interval says anything" in note
    assert any("both orders agree on 0.0% of 8 pairs" in note for note in table.notes)
    assert note in render(table, form="markdown")


def test_consistency_stands_in_the_table_however_good_it_is(judge, rules):
    pairs = make_benchmark(4)
    report = judged(pairs, rules)
    assert report.notes == ()  # a terminal has it in a table of its own
    [note] = [note for note in table_with(report, pairs).notes if "orders agree" in note]
    assert "8 verdicts in 8 replies; both orders agree on 100.0% of 4 pairs" in note


def test_a_judge_without_any_verdict_is_no_certainty(judge, rules):
    judge.script = lambda _: "I cannot say."
    pairs = make_benchmark(4)
    report = judged(pairs, rules)
    assert report.bounds == (0.0, 1.0)
    notes = "\n".join(table_with(report, pairs).notes)
    assert "no verdict in 8 replies" in notes
    assert any("no verdict in 8 replies" in note for note in report.notes)  # a terminal's too
    assert "8 of 8 verdicts are missing: neither [[A]] nor [[B]] in the reply" in notes
    assert "Accuracy would be 0.0% or 100.0%" in notes


def test_what_is_synthetic_and_what_learnt_from_labels_stands_in_the_table(judge, rules):
    judge.revision = f"sha256:{folder_digest(judge_path())}"  # the demo's judge
    pairs = make_benchmark(4)
    report = judged(
        pairs,
        rules,
        "rating",
        weights=vector(0.6, uses_labels=True),
        synthetic=("training source synthetic-hh",),
        name="rule judge",
    )
    assert report.synthetic == ("judge scripted", "training source synthetic-hh")
    assert report.uses_labels
    table = table_with(report, pairs)
    assert table.synthetic == (
        "rule judge: judge scripted",
        "rule judge: training source synthetic-hh",
    )
    assert any("rule judge: learnt from people's preferences" in note for note in table.notes)
    row = table.lines[1].row
    assert (row.kind, dict(row.params), row.uses_labels) == ("judge", {"tau": 2.0}, True)


@pytest.mark.parametrize("by", ["pair", "rating"])
def test_synthetic_is_what_is_asked_for_and_not_what_was_judged_first(judge, rules, by):
    """The same pairs under two names are one judging; the mark is of the name."""
    weights = vector(0.6) if by == "rating" else None
    generic = make_benchmark(3)
    named = make_benchmark(3, name="synthetic-safety")
    for first, second in ((generic, named), (named, generic)):
        out = rules.parent / first.benchmark.name
        found = {
            pairs.benchmark.name: judged(pairs, rules, by, weights=weights, out=out)
            for pairs in (first, second)
        }
        assert found["generic"].folder == found["synthetic-safety"].folder
        assert found["generic"].synthetic == ()
        assert found["synthetic-safety"].synthetic == ("benchmark synthetic-safety",)
        if by == "pair":
            for pairs in (generic, named):
                again = read_judged_pairs(found["generic"].folder, pairs=pairs)
                assert again.synthetic == found[pairs.benchmark.name].synthetic


def test_pairs_of_local_files_are_not_said_to_be_the_hub_s(tmp_path):
    hub = {"dataset": "an/id", "revision": "abc", "split": "test"}
    for is_from_hub in (False, True):
        pairs = dataclasses.replace(make_benchmark(2, **hub), is_from_hub=is_from_hub)
        study = study_of_pairs(pairs, out=tmp_path / str(is_from_hub))
        [origin] = read_manifest(study, "generic").origins
        expected = ("hub", "an/id", "abc") if is_from_hub else ("local", "generic", None)
        assert (origin.kind, origin.name, origin.revision) == expected


# --- what is counted ------------------------------------------------------------------------------


def test_bounds_are_those_of_the_headline_where_a_row_has_several_rejected_answers(judge, rules):
    """Ten rows of three. Row 0 lacks one verdict of three, row 1 two, row 2 is wrong about one.

    Row 0 is worth 1 / (1 + 1) = 1/2, row 1 is worth 1 / (1 + 2) = 1/3, row 2 nothing: (1/2 + 1/3 +
    7) / 10 = 78.3 %. With what is missing wrong 7 of 10, with it right 9 of 10. Over pairs it would
    be 27.5 of 30, and 26 or 29 of them.
    """

    def say(prompt: str) -> str:
        index = index_in(prompt)
        return "?" if index in (0, 3, 4) else verdict_of("wrong" if index == 6 else "right", prompt)

    judge.script = say
    pairs = make_benchmark(30, rejected_per_row=3, headline="Safety")
    report = judged(pairs, rules)
    assert report.score.headline.score == pytest.approx((1 / 2 + 1 / 3 + 7) / 10)
    assert report.bounds == pytest.approx((0.7, 0.9))
    assert any("Safety would be 70.0% or 90.0%" in note for note in report.notes)
    assert report.criteria[0].accuracy == pytest.approx(27.5 / 30)


@pytest.mark.parametrize("by", ["pair", "rule"])
def test_bounds_are_those_of_the_headline_where_subsets_weigh_alike(judge, rules, by):
    """Two pairs of subset 0 and eight of subset 1; nothing is known of one of the two.

    Subsets: (3/4 + 1) / 2, between (1/2 + 1) / 2 and 1. Pairs would give 95 %, 90 to 100.
    """
    pairs = make_benchmark(10, weighting="subsets")
    pairs = dataclasses.replace(pairs, subset_P=("few",) * 2 + ("many",) * 8)
    judge.script = lambda prompt: "?" if index_in(prompt) == 0 else verdict_of("right", prompt)
    report = judged(pairs, rules, by)
    assert report.score.headline.score == pytest.approx(0.875)
    assert report.bounds == pytest.approx((0.75, 1.0))
    assert any("would be 75.0% or 100.0%" in note for note in report.notes)


def test_ties_of_ratings_are_shown_as_losses_too_and_apart_from_what_is_not_rated(
    judge, rules, capsys
):
    """Ten pairs: kind, alone weighed, ties on 0 to 2 and rates nothing on 3: 6 right of 10.

    (6 + 4/2) / 10 = 80 % with halves, 60 % with losses.
    """

    def say(prompt: str) -> str:
        index = index_in(prompt)
        return "?" if index == 3 else "0.5" if index < 3 else say_rating(prompt)

    judge.script = say
    pairs = make_benchmark(10)
    report = judged(pairs, rules, "rating", weights=vector(1.0))
    assert report.score.headline.score == pytest.approx(0.8)
    assert report.strict_score.headline.score == pytest.approx(0.6)
    assert (report.num_ties, report.num_unrated) == (3, 1)
    assert dict(report.null_reasons) == {"not_a_single_number": 4}
    notes = "\n".join(table_with(report, pairs).notes)
    assert "3 pairs tie and 1 have no reward, of 10" in notes
    assert "counted as losses, as a reward model's ties are, they make Accuracy 60.0%" in notes
    assert "no rewards are kept beside the credits" in notes
    [stored] = read_pair_results(report.results)
    assert stored.results.reward_P2 is None
    assert (stored.results.about.judge, stored.results.about.scheme) == (report.judge, "encore")
    assert report.as_dict()["strict_score"]["headline"]["score"] == pytest.approx(0.6)
    print_judge_tables(report)
    assert "Accuracy, ties lost 10 60.0%" in " ".join(capsys.readouterr().out.split())


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["rule", "rating"])
def test_weights_of_two_studies_have_two_files(judge, rules, by):
    """Kind is right about every pair and long wrong, so the larger weight decides."""

    def say(prompt: str) -> str:
        opinion = "wrong" if "longer response" in prompt else "right"
        return verdict_of(opinion, prompt) if "[[A]]" in prompt else say_rating(prompt)

    judge.script = say
    pairs = make_benchmark(3)
    first = judged(pairs, rules, by, weights=vector(0.9))
    second = judged(pairs, rules, by, weights=vector(0.1))
    assert first.name == second.name  # both are "encore tau 2.0"
    for report, credit in ((first, 1), (second, 0)):
        [stored] = read_pair_results(report.results)
        assert stored.results.credit_P.tolist() == [credit] * 3
    assert judged(pairs, rules, by, weights=vector(0.9)).results == first.results


def test_names_in_any_script_and_of_any_length_have_files_of_their_own(judge, rules):
    pairs = make_benchmark(2)
    paths = {
        judged(pairs, rules, name=name).results
        for name in ("评判", "裁判者", "n" * 300, "n" * 301, None)
    }
    assert len(paths) == 5
    assert {read_pair_results(path)[0].results.name for path in paths} >= {"评判", "n" * 301}


def test_an_interruption_before_the_results_are_written_asks_nothing_again(
    judge, rules, monkeypatch
):
    pairs = make_benchmark(3)

    def stop(*_: object, **__: object) -> Path:
        raise KeyboardInterrupt

    for by, weights in (("rule", None), ("rating", vector(0.6))):
        with monkeypatch.context() as patched:
            patched.setattr(ways, "write_judge_results", stop)
            with pytest.raises(KeyboardInterrupt):
                judged(pairs, rules, by, weights=weights)
        num_asked = judge.num_asked
        report = judged(pairs, rules, by, weights=weights)
        assert judge.num_asked == num_asked
        assert report.results.is_file()


# --- how far it is --------------------------------------------------------------------------------


def test_replies_that_were_there_before_an_interruption_count_as_done(judge, rules):
    """By rating: three pairs (one of them twice), 2 answers under 2 rules, a pair a shard."""
    pairs = benchmark_of([make_pair(0), make_pair(1), make_pair(2), make_pair(0)])
    config = RatingConfig(judge=JudgeConfig(model="scripted"), rules=str(rules), shard_size=1)
    request = JudgingRequest(
        by="rating", config=config, out=rules.parent / "judged", weights=vector(0.6)
    )
    first: list[JudgingProgress] = []
    judged_once = judge_benchmark(pairs, request, on_progress=first.append)
    assert (first[-1].num_done, first[-1].num_replies) == (12, 12)
    next(judged_once.folder.glob("ratings/*/shard-00001.*parquet")).unlink()
    judge.num_asked = 0

    again: list[JudgingProgress] = []
    judge_benchmark(pairs, request, on_progress=again.append)

    assert judge.num_asked == 4
    assert max(told.num_done for told in again) == 12  # 4 of now, and 8 that were there
    assert {told.num_replies for told in again} == {12}


# --- where weights come from ----------------------------------------------------------------------


@pytest.mark.parametrize("by", ["rule", "rating"])
def test_weights_of_rules_with_other_texts_are_refused_before_the_judge_is_asked(judge, rules, by):
    pairs = make_benchmark(2)
    same = load_rule_set(rules).digest
    judged(pairs, rules, by, weights=vector(0.6, rules_sha256=same))
    num_asked = judge.num_asked
    rules.write_text(RULES_TOML.replace("should be kind", "must be very kind"))
    with pytest.raises(InputError, match="weights of rules with other texts"):
        judged(pairs, rules, by, weights=vector(0.6, rules_sha256=same))
    assert judge.num_asked == num_asked


@pytest.mark.parametrize("by", ["rule", "rating"])
def test_weights_from_the_benchmark_s_own_ratings_are_refused(judge, rules, by, tmp_path):
    pairs = make_benchmark(3)
    config = RatingConfig(judge=JudgeConfig(model="scripted"), rules=str(rules))
    own = rate_benchmark(pairs, config=config, out=tmp_path / "elsewhere", judge=judge)
    with pytest.raises(InputError, match="weights from ratings of benchmark generic itself"):
        judged(pairs, rules, by, weights=weigh(own.study, scheme="encore"))
    other = rate_benchmark(make_benchmark(4), config=config, out=tmp_path / "judged", judge=judge)
    assert judged(pairs, rules, by, weights=weigh(other.study, scheme="encore")).notes == ()


def test_own_ratings_under_another_name_of_the_benchmark_are_refused_too(judge, rules, tmp_path):
    config = RatingConfig(judge=JudgeConfig(model="scripted"), rules=str(rules))
    named = make_benchmark(3, name="other-name")
    own = rate_benchmark(named, config=config, out=tmp_path / "judged", judge=judge)
    with pytest.raises(InputError, match="weights from ratings of benchmark generic itself"):
        judged(make_benchmark(3), rules, "rating", weights=weigh(own.study, scheme="encore"))


@pytest.mark.parametrize("by", ["rule", "rating"])
def test_another_judge_s_weights_and_an_incomplete_run_are_told(judge, rules, by):
    pairs = make_benchmark(2)
    weights = vector(0.6, judge="large", num_shards=10, num_missing_shards=3)
    report = judged(pairs, rules, by, weights=weights)
    other, incomplete = report.notes
    assert other == "judge scripted: the rules are weighed by the ratings of another judge, large"
    assert "by an incomplete rating run: 3 of 10 shards are missing" in incomplete
    assert all(any(note in one for one in table_with(report, pairs).notes) for note in report.notes)
    own = vector(0.6, judge="scripted", num_shards=10)
    assert judged(pairs, rules, by, weights=own).notes == ()
