"""A judge's weighted ratings are a reward; a missing rating is no rating of 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from encore.benchmarks.benchmark_options import JudgeBenchmarkConfig
from encore.benchmarks.judging import run_judge
from encore.benchmarks.judging.rated_pairs import (
    RatedPairs,
    check_weights,
    create_rated_study,
    rate_pairs,
)
from encore.benchmarks.judging.run_judge import judge_benchmark
from encore.core.errors import InputError
from encore.data.pairs import read_pairs, records_of
from encore.data.rule_sets import load_rule_set
from encore.weighting.weigh import weights as weigh
from encore.weighting.weight_vector import WeightVector
from tests.benchmarks.judging.scripted import (
    benchmark_of,
    index_in,
    make_benchmark,
    make_pair,
    rating_options,
)
from tests.worlds.judges import ScriptedJudge
from tests.worlds.studies import write_rules


@pytest.fixture
def config(tmp_path: Path) -> JudgeBenchmarkConfig:
    return rating_options(tmp_path)


def rate_by_rule(prompt: str) -> str:
    """Rate by rule: "Kind" prefers the chosen answer by 0.6, "Long" the rejected one by 0.5."""
    is_good = f"Good {index_in(prompt)}." in prompt
    if "Rule Kind." in prompt:
        return "0.8" if is_good else "0.2"
    return "0.1" if is_good else "0.6"


def rated(pairs, config, *, kind=0.5, long=0.5, script=rate_by_rule) -> RatedPairs:
    return rate_pairs(pairs, config, {"kind": kind, "long": long}, judge=ScriptedJudge(script))


@pytest.mark.parametrize(
    ("kind", "long", "credit"),
    [
        (0.5, 0.5, 1),  # 0.5 · 0.6 - 0.5 · 0.5 = 0.05
        (0.4, 0.6, 0),  # 0.24 - 0.30 = -0.06
        (5 / 11, 6 / 11, 0.5),  # 5 · 0.6 = 6 · 0.5: a tie but for rounding
        (1, 0, 1),
    ],
)
def test_the_weighted_sum_of_the_ratings_decides(config, kind, long, credit):
    result = rated(make_benchmark(3), config, kind=kind, long=long)
    assert result.credit_P.tolist() == [credit] * 3
    chosen, rejected = kind * 0.8 + long * 0.1, kind * 0.2 + long * 0.6
    assert result.reward_P2 == pytest.approx(np.array([[chosen, rejected]] * 3))
    assert result.num_ties == (3 if credit == 0.5 else 0)
    assert (result.num_unrated, result.num_partly) == (0, 0)


def test_missing_ratings_are_left_out_on_both_sides(tmp_path, config):
    def silent(prompt: str) -> str:
        index, is_kind = index_in(prompt), "Rule Kind." in prompt
        is_good = f"Good {index}." in prompt
        # Pair 1: no rating of kindness of the chosen answer. Pair 2: none of anything.
        is_missing = index == 2 or (index == 1 and is_kind and is_good)
        return "?" if is_missing else rate_by_rule(prompt)

    result = rated(make_benchmark(3), config, script=silent)
    assert result.credit_P.tolist() == [1, 0, 0.5]  # by length alone the second pair is lost
    assert result.reward_P2[1] == pytest.approx([0.1, 0.6])
    assert np.isnan(result.reward_P2[2]).all()
    assert (result.num_ties, result.num_unrated, result.num_partly) == (0, 1, 1)
    assert sum(result.null_reasons.values()) == 5


def test_a_note_gives_the_score_with_ties_as_losses(tmp_path, config, monkeypatch):
    """Four pairs by two rules of equal weight: won, won, a tie, lost."""
    chosen_ratings = ("0.9", "0.6", "0.5", "0.1")  # every rejected answer has 0.5

    def say_by_pair(prompt: str) -> str:
        index = index_in(prompt)
        return chosen_ratings[index] if f"Good {index}." in prompt else "0.5"

    training = rated(make_benchmark(5), config).study
    pairs = make_benchmark(4)
    monkeypatch.setattr(run_judge, "configured_pairs", lambda _config: pairs)
    by_rating = config.model_copy(
        update={"by": "rating", "weights_from": training, "scheme": "uniform"}
    )
    report = judge_benchmark(by_rating, judge=ScriptedJudge(say_by_pair))
    # (1 + 1 + 1/2 + 0) / 4, and 2 / 4 where the tie is a loss.
    assert report.score.headline.score == 2.5 / 4
    [note] = [note for note in report.notes if "pairs tie" in note]
    assert "1 pairs tie and 0 have no reward; each counts one half" in note
    assert note.endswith(f"if they count as losses, {report.score.headline.name} is 50.0%")


def test_equal_pairs_are_rated_once_and_the_study_is_reused(tmp_path, config):
    pairs = benchmark_of([make_pair(0), make_pair(0), make_pair(1)])
    first = rated(pairs, config)
    assert len(records_of(read_pairs(create_rated_study(pairs, out=tmp_path)))) == 2
    assert len(first.credit_P) == 3
    second = rated(pairs, config, script=lambda _: "0.5")
    assert (second.study, second.manifest.run_key) == (first.study, first.manifest.run_key)
    assert second.credit_P.tolist() == first.credit_P.tolist()


def test_weights_of_other_rules_or_of_the_benchmark_itself_are_refused(tmp_path, config):
    rules, pairs = load_rule_set(config.rules), make_benchmark(3)
    rated_benchmark = rated(pairs, config)
    vector = weigh(rated_benchmark.study, scheme="uniform")
    with pytest.raises(InputError, match=r"from ratings of benchmark generic itself"):
        check_weights(vector, rules, pairs, out=tmp_path)
    elsewhere = make_benchmark(4)
    check_weights(vector, rules, elsewhere, out=tmp_path)
    path = write_rules(tmp_path / "other.toml", ["Kind!", "Long"])  # of the same ids
    with pytest.raises(InputError, match="differ in their texts"):
        check_weights(vector, load_rule_set(str(path)), elsewhere, out=tmp_path)
    by_hand = WeightVector(scheme="hand", rule_ids=("kind",), weights=(1.0,))
    with pytest.raises(InputError, match=r"weights of other rules .*they differ in long"):
        check_weights(by_hand, rules, elsewhere, out=tmp_path)
