"""A judge's weighted ratings are a reward; a missing rating is no rating of 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.benchmarks.judging.rated import rate_benchmark, study_of_pairs
from encore.benchmarks.judging.rating_reward import rating_reward, weighted_rewards
from encore.config import JudgeConfig, RatingConfig
from encore.data.pairs import read_pairs, records_of
from encore.data.study import open_study
from encore.errors import InputError, StudyIncompleteError
from encore.warehouse import PairRatings
from encore.weighting.weigh import weights as weigh
from tests.benchmarks.judging.scripted import (
    benchmark_of,
    index_in,
    judge_saying,
    make_benchmark,
    make_pair,
)

RULES_TOML = """
name = "two"

[[rules]]
title = "Kind"
description = "d"
preference_rule = "Accept the kinder response."
rating_rule = "The response should be kind."

[[rules]]
title = "Long"
description = "d"
preference_rule = "Accept the longer response."
rating_rule = "The response should be long."
"""


@pytest.fixture
def config(tmp_path: Path) -> RatingConfig:
    path = tmp_path / "two.toml"
    path.write_text(RULES_TOML)
    return RatingConfig(judge=JudgeConfig(model="scripted"), rules=str(path), shard_size=2)


def say(prompt: str) -> str:
    """Kind prefers the chosen answer by 0.6, long the rejected one by 0.5."""
    is_good = f"Good {index_in(prompt)}." in prompt
    if "should be kind" in prompt:
        return "0.8" if is_good else "0.2"
    return "0.1" if is_good else "0.6"


def reward_of(pairs, config, out, *, kind: float, long: float, say=say):
    rated = rate_benchmark(pairs, config=config, out=out, judge=judge_saying(say))
    return rating_reward(pairs, rated, weights={"kind": kind, "long": long})


@pytest.mark.parametrize(
    ("kind", "long", "credit"),
    [
        (0.5, 0.5, 1),  # 0.5 · 0.6 - 0.5 · 0.5 = 0.05
        (0.4, 0.6, 0),  # 0.24 - 0.30 = -0.06
        (5 / 11, 6 / 11, 0.5),  # 5 · 0.6 = 6 · 0.5: a tie but for rounding
        (1, 0, 1),
    ],
)
def test_the_weighted_sum_of_the_ratings_decides(tmp_path, config, kind, long, credit):
    result = reward_of(make_benchmark(3), config, tmp_path, kind=kind, long=long)
    assert result.credit_P.tolist() == [credit] * 3
    chosen, rejected = kind * 0.8 + long * 0.1, kind * 0.2 + long * 0.6
    assert result.reward_P2 == pytest.approx(np.array([[chosen, rejected]] * 3))
    assert result.num_ties == (3 if credit == 0.5 else 0)
    assert (result.num_partly_rated, result.num_unrated, result.notes) == (0, 0, ())


def test_only_rules_that_rated_both_answers_count(tmp_path, config):
    def partly(prompt: str) -> str:
        index, is_good = index_in(prompt), f"Good {index_in(prompt)}." in prompt
        if index == 0 and "should be long" in prompt and is_good:
            return "I cannot say."  # pair 0: kind alone decides, though long weighs more
        if index == 1:
            return "?"
        return say(prompt)

    result = reward_of(make_benchmark(3), config, tmp_path, kind=0.4, long=0.6, say=partly)
    assert result.credit_P.tolist() == [1, 0.5, 0]
    assert result.reward_P2[0] == pytest.approx([0.8, 0.2])
    assert np.isnan(result.reward_P2[1]).all()
    assert (result.num_partly_rated, result.num_unrated, result.num_ties) == (1, 1, 0)
    # Pair 0: one reply; pair 1: two answers under two rules.
    assert [note.partition(": ")[2][:36] for note in result.notes] == [
        "5 ratings are missing: not a single ",
        "1 pairs lack ratings under some rule",
        "1 pairs have no rule that rated both",
    ]
    assert "no rewards are kept" in result.notes[2]
    assert result.strict_credit_P.tolist() == [1, 0, 0]


def test_a_rule_without_weight_is_not_missed(tmp_path, config):
    def only_kind(prompt: str) -> str:
        return "?" if "should be long" in prompt else say(prompt)

    result = reward_of(make_benchmark(3), config, tmp_path, kind=1, long=0, say=only_kind)
    assert result.credit_P.tolist() == [1, 1, 1]
    assert (result.num_partly_rated, result.num_unrated) == (0, 0)


def test_the_rated_benchmark_is_a_study_like_any_other(tmp_path, config):
    pairs = make_benchmark(3)
    rated = rate_benchmark(pairs, config=config, out=tmp_path, judge=judge_saying(say))
    stored = records_of(read_pairs(open_study(rated.study)))
    assert {pair.pair_id for pair in stored} == {pair.pair_id for pair in pairs.pairs}
    assert weigh(rated.study, scheme="uniform").weights == (0.5, 0.5)


def test_a_second_rating_asks_nothing(tmp_path, config):
    pairs, judge = make_benchmark(3), judge_saying(say)
    first = rate_benchmark(pairs, config=config, out=tmp_path, judge=judge)
    assert rate_benchmark(pairs, config=config, out=tmp_path, judge=judge) == first
    assert judge.num_asked == 3 * 2 * 2


def test_a_limit_of_the_config_does_not_leave_pairs_out(tmp_path, config):
    limited = config.model_copy(update={"limit": 1})
    result = reward_of(make_benchmark(3), limited, tmp_path, kind=0.5, long=0.5)
    assert result.credit_P.tolist() == [1, 1, 1]


def test_equal_pairs_in_two_rows_are_rated_once_and_both_count(tmp_path, config):
    pairs = benchmark_of([make_pair(0), make_pair(1), make_pair(0)])
    judge = judge_saying(say)
    rated = rate_benchmark(pairs, config=config, out=tmp_path, judge=judge)
    assert judge.num_asked == 2 * 2 * 2
    result = rating_reward(pairs, rated, weights={"kind": 1, "long": 0})
    assert result.credit_P.tolist() == [1, 1, 1]


def test_other_pairs_get_another_study(tmp_path):
    paths = {study_of_pairs(make_benchmark(num), out=tmp_path).path for num in (2, 3, 2)}
    assert len(paths) == 2


def test_shards_that_fail_are_an_error_with_the_way_on(tmp_path, config):
    def fail(prompt: str) -> str:
        raise RuntimeError("engine died")

    with pytest.raises(StudyIncompleteError, match=r"2 of 2 shards failed .*engine died"):
        rate_benchmark(make_benchmark(3), config=config, out=tmp_path, judge=judge_saying(fail))


def test_bad_input_is_refused(tmp_path, config):
    pairs = make_benchmark(2)
    rated = rate_benchmark(pairs, config=config, out=tmp_path, judge=judge_saying(say))
    with pytest.raises(InputError, match="they differ in long"):
        rating_reward(pairs, rated, weights={"kind": 1})
    with pytest.raises(InputError, match="1 of 3 pairs have no ratings"):
        rating_reward(make_benchmark(3), rated, weights={"kind": 1, "long": 1})
    with pytest.raises(InputError, match="no pairs to rate"):
        study_of_pairs(benchmark_of([]), out=tmp_path)


@given(
    st.integers(1, 6).flatmap(
        lambda num_rules: st.tuples(
            st.lists(
                st.tuples(*[st.floats(0, 1) for _ in range(2 * num_rules)]), min_size=1, max_size=8
            ),
            st.lists(st.floats(0.01, 1), min_size=num_rules, max_size=num_rules),
        )
    ),
    st.floats(0.1, 10),
)
def test_rewards_lie_between_ratings_and_do_not_depend_on_the_scale_of_weights(made, scale):
    rows, weights = made
    rating_P2R = np.array(rows).reshape(len(rows), 2, -1)
    num_pairs, _, num_rules = rating_P2R.shape
    ratings = PairRatings(
        rule_ids=tuple(map(str, range(num_rules))),
        source_P=np.array(["s"] * num_pairs, dtype=np.object_),
        pair_id_P=np.array(list(map(str, range(num_pairs))), dtype=np.object_),
        chosen_PR=rating_P2R[:, 0],
        rejected_PR=rating_P2R[:, 1],
    )
    weight_R = np.array(weights)
    reward_P2 = weighted_rewards(ratings, weight_R=weight_R)
    assert (reward_P2 >= rating_P2R.min(axis=2) - 1e-12).all()
    assert (reward_P2 <= rating_P2R.max(axis=2) + 1e-12).all()
    assert weighted_rewards(ratings, weight_R=scale * weight_R) == pytest.approx(reward_P2)
