"""Credits, scores of subsets and the headline, against figures worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.metrics import (
    BenchmarkScore,
    benchmark_score,
    margin_credits,
    mean_credit,
    unit_credits,
    unit_weights,
    units_of_keys,
)
from encore.core.errors import InputError
from tests.worlds.tables import benchmark_pairs

Z2 = 1.959963984540054**2
TWO = benchmark_pairs({"a": 10, "b": 10})


def score_margins(margin_P: np.ndarray, pairs: BenchmarkPairs, ties: str) -> BenchmarkScore:
    credit_P, half_P = (margin_credits(margin_P, ties=policy) for policy in (ties, "half"))
    return benchmark_score(credit_P, pairs=pairs, ties=ties, half_P=half_P)


def test_a_tie_gets_the_credit_of_its_policy_and_margins_that_cancel_tie():
    rounding_error = 0.3 - 0.2 - 0.1  # about -3e-17
    assert rounding_error != 0
    for ties, credit in (("loss", 0.0), ("half", 0.5)):
        credit_P = margin_credits(np.array([0.2, 0.0, rounding_error, -0.1]), ties=ties)
        assert credit_P.tolist() == [1.0, credit, credit, 0.0]
        # A pair that was set aside has no margin and gets no credit, neither 0 nor a half.
        assert np.isnan(margin_credits(np.array([np.nan]), ties=ties)).all()


# --- intervals ------------------------------------------------------------------------------------


def test_intervals_are_wilsons():
    credit_P = np.concatenate([np.ones(10), np.zeros(10)])
    right, wrong = benchmark_score(credit_P, pairs=TWO, ties="loss").subsets
    # Wilson, all of n: from n / (n + z²) to 1; none of n: from 0 to z² / (n + z²).
    assert (right.ci_low, right.ci_high) == (pytest.approx(10 / (10 + Z2)), 1.0)
    assert (wrong.ci_low, wrong.ci_high) == (0.0, pytest.approx(Z2 / (10 + Z2)))
    # Subsets of equal weight: a may lie z²/(n + z²) lower and no higher, b as much higher and no
    # lower; half of each counts.
    equal_subsets = benchmark_pairs({"a": 10, "b": 10}, weighting="subsets")
    headline = benchmark_score(credit_P, pairs=equal_subsets, ties="loss").headline
    half_width = Z2 / (10 + Z2) / 2
    score_and_ends = (headline.score, headline.ci_low, headline.ci_high)
    assert score_and_ends == pytest.approx((0.5, 0.5 - half_width, 0.5 + half_width))


def test_the_interval_of_a_mean_over_subsets_adds_squares_and_not_ends():
    # Half right in each of two subsets of 10. Wilson at p = 1/2 reaches z / (2 sqrt(n + z²)) =
    # 0.2634 to either side. The mean of two independent subsets reaches
    # sqrt(0.2634² + 0.2634²) / 2 = 0.1863; ends that are added would reach 0.2634.
    credit_P = np.tile([1.0, 0.0], 10)
    equal_subsets = benchmark_pairs({"a": 10, "b": 10}, weighting="subsets")
    score = benchmark_score(credit_P, pairs=equal_subsets, ties="loss")
    assert [subset.ci_high - 0.5 for subset in score.subsets] == pytest.approx(
        [0.2634] * 2, abs=1e-4
    )
    headline = score.headline
    score_and_ends = (headline.score, headline.ci_low, headline.ci_high)
    assert score_and_ends == pytest.approx((0.5, 0.5 - 0.1863, 0.5 + 0.1863), abs=1e-4)


@given(margins=st.lists(st.integers(-2, 2), min_size=20, max_size=20))
def test_every_pair_is_won_tied_or_lost(margins):
    margin_P = np.array(margins, dtype=np.float64)
    for ties in ("loss", "half"):
        score = score_margins(margin_P, TWO, ties)
        counts = [(subset.num_wins, subset.num_ties, subset.num_losses) for subset in score.subsets]
        assert [sum(subset) for subset in counts] == [10, 10]
        won, tied, lost = np.sum(counts, axis=0)
        assert (won, tied, lost) == (
            (margin_P > 0).sum(),
            (margin_P == 0).sum(),
            (margin_P < 0).sum(),
        )
        assert 0 <= score.headline.ci_low <= score.headline.score <= score.headline.ci_high <= 1
        credit = (won + (tied / 2 if ties == "half" else 0)) / 20
        assert score.headline.score == pytest.approx(credit)


def test_unknown_ties_are_not_counted_and_wrong_credits_are_refused():
    score = benchmark_score(np.zeros(20), pairs=TWO, ties="loss")
    assert [(subset.num_ties, subset.num_losses) for subset in score.subsets] == [(None, 10)] * 2
    for credit_P in (np.zeros(19), np.full(20, 1.5), np.full(20, np.nan)):
        with pytest.raises(InputError, match=r"in \[0, 1\] for each of 20 pairs"):
            benchmark_score(credit_P, pairs=TWO, ties="loss")


def test_a_pair_that_was_set_aside_counts_in_no_figure_and_takes_its_choice_along():
    # Subset a: right, set aside, wrong, right; subset b: one choice of four pairs, one set aside,
    # and one choice that is right. Two of three in a, one of one in b.
    credit_P = np.array([1.0, np.nan, 0.0, 1.0, 1.0, 1.0, np.nan, 1.0, 1.0, 1.0, 1.0, 1.0])
    units = units_of_keys(
        [
            *(("a", str(row), "") for row in range(4)),
            *(("b", str(row // 4), "") for row in range(8)),
        ]
    )
    credit_U = unit_credits(credit_P, units=units)
    np.testing.assert_array_equal(credit_U, [1, np.nan, 0, 1, np.nan, 1])
    subset_U = units.subset_U
    assert mean_credit(credit_U, subset_U=subset_U, weighting="examples") == pytest.approx(3 / 4)
    expected = (2 / 3 + 1) / 2
    assert mean_credit(credit_U, subset_U=subset_U, weighting="subsets") == pytest.approx(expected)

    pairs = benchmark_pairs({"a": 4}, weighting="subsets")
    score = benchmark_score(credit_P[:4], pairs=pairs, ties="loss")
    assert (score.headline.score, score.headline.num_pairs) == (pytest.approx(2 / 3), 3)
    assert score.is_partial
    [subset] = score.subsets
    assert (subset.num_pairs, subset.num_wins) == (3, 2)


# --- rows with several rejected responses ---------------------------------------------------------


@given(rewards=st.lists(st.tuples(*[st.integers(0, 3)] * 4), min_size=1, max_size=8))
def test_choices_are_counted_as_rewardbench_2_counts_them(rewards):
    pairs = benchmark_pairs({"s": 3 * len(rewards)}, rejected_per_row=3)
    reward_U4 = np.array(rewards, dtype=np.float64)
    margin_P = (reward_U4[:, :1] - reward_U4[:, 1:]).ravel()
    # Its rule: 1 / (how many share the highest reward) if the chosen one has it, else 0.
    is_top_U4 = reward_U4 == reward_U4.max(axis=1, keepdims=True)
    worth_U = np.where(is_top_U4[:, 0], 1 / is_top_U4.sum(axis=1), 0.0)
    half = score_margins(margin_P, pairs, "half")
    assert half.headline.num_pairs == len(rewards)  # choices, not pairs
    assert half.headline.score == pytest.approx(worth_U.mean())
    strict = score_margins(margin_P, pairs, "loss")
    assert strict.headline.score == pytest.approx((worth_U == 1).mean())
    (subset,) = strict.subsets
    assert (subset.num_wins, subset.num_ties) == (
        (worth_U == 1).sum(),
        ((worth_U > 0) & (worth_U < 1)).sum(),
    )


@given(subsets=st.lists(st.sampled_from("abc"), min_size=1, max_size=20))
def test_weights_of_units_add_up_to_one_and_subsets_weigh_alike(subsets):
    assert unit_weights(subsets, weighting="examples").sum() == pytest.approx(1)
    weight_U = unit_weights(subsets, weighting="subsets")
    shares = [weight_U[np.array(subsets) == name].sum() for name in set(subsets)]
    assert shares == pytest.approx([1 / len(shares)] * len(shares))


def test_the_pairs_of_a_row_need_not_be_neighbours():
    units = units_of_keys([("s", "1"), ("s", "2"), ("t", "1"), ("s", "1")])
    assert units.subset_U == ("s", "s", "t")
    # Row 1 of s: places 0 and 3, of which the second is lost, then tied.
    assert unit_credits(np.array([1.0, 1.0, 0.5, 0.0]), units=units).tolist() == [0.0, 1.0, 0.5]
    assert unit_credits(np.array([1.0, 0.0, 1.0, 0.5]), units=units).tolist() == [0.5, 0.0, 1.0]
