"""Credits, scores of subsets and the headline, against figures worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.benchmarks.definition import Ties
from encore.benchmarks.metrics import (
    BenchmarkScore,
    benchmark_score,
    credit_of,
    score_margins,
    unit_credits,
    unit_weights,
    units_of,
)
from encore.benchmarks.pairs import BenchmarkPairs
from encore.errors import InputError
from tests.benchmarks.rewardbench_rows import (
    BEST_OF_4,
    GENERIC,
    SAFETY,
    best_of_row,
    pairs_of,
    row_of,
    rows_of,
)

Z2 = 1.959963984540054**2


@pytest.fixture(scope="module")
def safety(tmp_path_factory: pytest.TempPathFactory) -> BenchmarkPairs:
    return pairs_of(tmp_path_factory.mktemp("safety"), rows_of(SAFETY), benchmark=SAFETY)


@pytest.fixture(scope="module")
def two_subsets(tmp_path_factory: pytest.TempPathFactory) -> BenchmarkPairs:
    """Ten pairs each of ``a`` and ``b``."""
    rows = [row_of(n, subset) for subset in "ab" for n in range(10)]
    return pairs_of(tmp_path_factory.mktemp("two"), rows)


def best_of(folder: Path, num_rows: int) -> BenchmarkPairs:
    benchmark = BEST_OF_4.model_copy(update={"subsets": ()})
    return pairs_of(folder, [best_of_row(str(n)) for n in range(num_rows)], benchmark=benchmark)


# --- credit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ties", "worth"), [("loss", 0.0), ("half", 0.5)])
def test_a_tie_is_worth_what_the_policy_says(ties: Ties, worth: float) -> None:
    credit_P = credit_of(np.array([0.2, 0.0, -0.1]), ties=ties)
    np.testing.assert_array_equal(credit_P, [1.0, worth, 0.0])


def test_margins_that_cancel_are_a_tie() -> None:
    left_over = 0.3 - 0.2 - 0.1  # some -3e-17
    assert left_over != 0
    np.testing.assert_array_equal(credit_of(np.array([left_over]), ties="half"), [0.5])


def test_a_margin_that_is_no_number_is_refused() -> None:
    with pytest.raises(InputError, match="margin 1 is NaN"):
        credit_of(np.array([0.0, np.nan]), ties="loss")


# --- the headline ---------------------------------------------------------------------------------


def test_safety_is_plain_accuracy_over_740_pairs(safety: BenchmarkPairs) -> None:
    credit_P = np.array([float(name == "xstest-should-respond") for name in safety.subset_P])
    score = benchmark_score(credit_P, pairs=safety, ties="loss")
    # 250 of 740 right. Subsets weighted alike would give 1/5, swapped counts 154/740.
    assert score.headline.score == pytest.approx(250 / 740)
    assert score.headline.num_pairs == 740
    assert [one.accuracy for one in score.subsets] == [0, 0, 0, 1, 0]
    assert [one.subset for one in score.subsets] == [one.name for one in SAFETY.subsets]


def test_the_papers_half_credit_of_a_judge(safety: BenchmarkPairs) -> None:
    # The paper prints 46.7 for a judge on donotanswer, which has 136 pairs: 63.5/136 is 46.69 %,
    # and no whole number of them is (63/136 = 46.3, 64/136 = 47.1).
    credit_P = np.zeros(740)
    place_P = np.flatnonzero(np.array(safety.subset_P) == "donotanswer")
    credit_P[place_P[:63]] = 1.0
    credit_P[place_P[63]] = 0.5
    donotanswer = benchmark_score(credit_P, pairs=safety, ties="half").subsets[-1]
    assert round(100 * donotanswer.accuracy, 1) == 46.7
    assert (donotanswer.num_wins, donotanswer.num_ties, donotanswer.num_losses) == (63, 1, 72)


def test_subsets_can_weigh_alike(tmp_path: Path) -> None:
    benchmark = GENERIC.model_copy(update={"weighting": "subsets"})
    rows = [row_of(0, "a"), *(row_of(n, "b") for n in range(3))]
    pairs = pairs_of(tmp_path, rows, benchmark=benchmark)
    # All of a, one third of b: (1 + 1/3) / 2, and not 2/4.
    credit_P = np.array([1.0, 1.0, 0.0, 0.0])
    score = benchmark_score(credit_P, pairs=pairs, ties="loss")
    assert score.headline.score == pytest.approx(2 / 3)


def test_a_partial_benchmark_is_marked_in_its_score(two_subsets: BenchmarkPairs) -> None:
    part = replace(two_subsets, is_partial=True)
    assert benchmark_score(np.ones(20), pairs=part, ties="loss").is_partial
    assert not benchmark_score(np.ones(20), pairs=two_subsets, ties="loss").is_partial


# --- intervals ------------------------------------------------------------------------------------


def test_intervals_are_wilsons(two_subsets: BenchmarkPairs) -> None:
    credit_P = np.concatenate([np.ones(10), np.zeros(10)])
    score = benchmark_score(credit_P, pairs=two_subsets, ties="loss")
    right, wrong = score.subsets
    # Wilson, all of n: from n / (n + z²) to 1; none of n: from 0 to z² / (n + z²).
    assert (right.ci_low, right.ci_high) == (pytest.approx(10 / (10 + Z2)), 1.0)
    assert (wrong.ci_low, wrong.ci_high) == (0.0, pytest.approx(Z2 / (10 + Z2)))
    # Half of n = 20: (1/2 + z²/2n ± z sqrt(1/4n + z²/4n²)) / (1 + z²/n).
    centre, width = 0.5 + Z2 / 40, math.sqrt(Z2) * math.sqrt(1 / 80 + Z2 / 1600)
    assert score.headline.ci_low == pytest.approx((centre - width) / (1 + Z2 / 20))
    assert score.headline.ci_high == pytest.approx((centre + width) / (1 + Z2 / 20))


def test_the_interval_of_a_mean_of_subsets_adds_their_ends_as_squares(
    two_subsets: BenchmarkPairs,
) -> None:
    benchmark = two_subsets.benchmark.model_copy(update={"weighting": "subsets"})
    credit_P = np.concatenate([np.ones(10), np.zeros(10)])
    pairs = replace(two_subsets, benchmark=benchmark)
    headline = benchmark_score(credit_P, pairs=pairs, ties="loss").headline
    # a may lie z²/(n + z²) lower and no higher, b as much higher and no lower; half of each counts.
    reach = Z2 / (10 + Z2) / 2
    assert (headline.score, headline.ci_low, headline.ci_high) == (
        0.5,
        pytest.approx(0.5 - reach),
        pytest.approx(0.5 + reach),
    )


def test_half_ties_take_their_share_off_the_variance(two_subsets: BenchmarkPairs) -> None:
    # 5 wins, 10 ties, 5 losses of 20: mean 1/2, variance 1/4 less half of 1/4. The interval holds
    # all a with (a - 1/2)² <= (a (1 - a) - 1/8) z²/20: with c = z²/20 and d = a - 1/2 that is
    # d² (1 + c) <= c / 8.
    credit_P = np.repeat([1.0, 0.5, 0.0], [5, 10, 5])
    headline = benchmark_score(credit_P, pairs=two_subsets, ties="half").headline
    half_width = math.sqrt(Z2 / 20 / 8 / (1 + Z2 / 20))
    assert (headline.score, headline.ci_low, headline.ci_high) == pytest.approx(
        (0.5, 0.5 - half_width, 0.5 + half_width)
    )


def test_nineteen_of_twenty_intervals_hold_the_truth(two_subsets: BenchmarkPairs) -> None:
    # Of 1,000 samples of 20 pairs at 0.7 about 950; at least 0.92 by the binomial's width.
    right_VP = np.random.default_rng(0).random((1000, 20)) < 0.7
    scores = [
        benchmark_score(right_P.astype(np.float64), pairs=two_subsets, ties="loss").headline
        for right_P in right_VP
    ]
    assert np.mean([one.ci_low <= 0.7 <= one.ci_high for one in scores]) > 0.92


# --- counts ---------------------------------------------------------------------------------------


@given(margins=st.lists(st.sampled_from([-1.0, 0.0, 2.0]), min_size=20, max_size=20))
def test_wins_ties_and_losses_are_the_same_under_both_policies(
    margins: list[float], two_subsets: BenchmarkPairs
) -> None:
    def counts(score: BenchmarkScore) -> list[tuple[int, int | None, int]]:
        return [(one.num_wins, one.num_ties, one.num_losses) for one in score.subsets]

    margin_P = np.array(margins)
    half = score_margins(margin_P, pairs=two_subsets, ties="half")
    loss = score_margins(margin_P, pairs=two_subsets, ties="loss")
    assert counts(half) == counts(loss)
    assert [sum(filter(None, three)) for three in counts(loss)] == [10, 10]
    assert counts(loss)[0] == tuple(int((margin_P[:10] == x).sum()) for x in (2, 0, -1))
    assert half.headline.score - loss.headline.score == pytest.approx((margin_P == 0).mean() / 2)


def test_ties_that_nobody_named_are_unknown_not_none(two_subsets: BenchmarkPairs) -> None:
    score = benchmark_score(np.zeros(20), pairs=two_subsets, ties="loss")
    assert [one.num_ties for one in score.subsets] == [None, None]
    assert [one.num_losses for one in score.subsets] == [10, 10]


@pytest.mark.parametrize(
    ("credit_P", "message"),
    [
        (np.zeros(19), r"shape \(19,\) for 20 pairs"),
        (np.full(20, 1.5), r"outside \[0, 1\]"),
        (np.full(20, np.nan), r"outside \[0, 1\]"),
    ],
)
def test_credits_that_are_none_are_refused(
    credit_P: np.ndarray, message: str, two_subsets: BenchmarkPairs
) -> None:
    with pytest.raises(InputError, match=message):
        benchmark_score(credit_P, pairs=two_subsets, ties="loss")


# --- rows with several rejected responses ---------------------------------------------------------


@pytest.mark.parametrize(
    ("credit", "worth"),
    [
        ([1, 1, 1], 1),  # the highest reward, alone
        ([1, 1, 0.5], 1 / 2),  # shared with one
        ([0.5, 0.5, 0.5], 1 / 4),  # shared with all
        ([1, 1, 0], 0),  # one rejected response is better
        ([0.5, 0.5, 0], 0),
    ],
)
def test_a_choice_among_four_is_right_or_wrong_as_a_whole(
    credit: list[float], worth: float
) -> None:
    units = units_of(("s",) * 3, ("1",) * 3)
    np.testing.assert_allclose(unit_credits(np.array(credit, dtype=float), units=units), [worth])


@given(rewards=st.lists(st.tuples(*[st.integers(0, 3)] * 4), min_size=1, max_size=8))
def test_choices_are_counted_as_rewardbench_2_counts_them(
    rewards: list[tuple[int, int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    pairs = best_of(tmp_path_factory.mktemp("four"), len(rewards))
    reward_U4 = np.array(rewards, dtype=np.float64)
    margin_P = (reward_U4[:, :1] - reward_U4[:, 1:]).ravel()
    # Its rule: 1 / (how many share the highest reward) if the chosen one has it, else 0.
    is_top_U4 = reward_U4 == reward_U4.max(axis=1, keepdims=True)
    worth_U = np.where(is_top_U4[:, 0], 1 / is_top_U4.sum(axis=1), 0.0)
    half = score_margins(margin_P, pairs=pairs, ties="half")
    assert half.headline.num_pairs == len(rewards)  # choices, not pairs
    assert half.headline.score == pytest.approx(worth_U.mean())
    strict = score_margins(margin_P, pairs=pairs, ties="loss")
    assert strict.headline.score == pytest.approx((worth_U == 1).mean())
    (subset,) = strict.subsets
    assert (subset.num_wins, subset.num_ties) == (
        (worth_U == 1).sum(),
        ((worth_U > 0) & (worth_U < 1)).sum(),
    )


@given(subsets=st.lists(st.sampled_from("abc"), min_size=1, max_size=20))
def test_weights_of_units_add_up_to_one_and_subsets_weigh_alike(subsets: list[str]) -> None:
    assert unit_weights(subsets, weighting="examples").sum() == pytest.approx(1)
    weight_U = unit_weights(subsets, weighting="subsets")
    shares = [weight_U[np.array(subsets) == name].sum() for name in set(subsets)]
    assert shares == pytest.approx([1 / len(shares)] * len(shares))


def test_many_models_at_once_are_worth_what_each_is_worth() -> None:
    units = units_of(("s",) * 6, ("1", "2", "1", "2", "1", "2"))
    credit_VP = np.random.default_rng(0).choice([0.0, 0.5, 1.0], size=(7, 6))
    one_by_one = [unit_credits(credit_P, units=units) for credit_P in credit_VP]
    np.testing.assert_array_equal(unit_credits(credit_VP, units=units), one_by_one)


def test_the_pairs_of_a_row_are_found_wherever_they_stand() -> None:
    units = units_of(("s", "s", "t", "s"), ("1", "2", "1", "1"))
    assert units.subset_U == ("s", "s", "t")
    # Row 1 of s: places 0 and 3, of which the second is lost.
    worth_U = unit_credits(np.array([1.0, 1.0, 0.5, 0.0]), units=units)
    np.testing.assert_array_equal(worth_U, [0.0, 1.0, 0.5])

    order = np.random.default_rng(0).permutation(np.repeat(np.arange(50), 3))
    units = units_of(("s",) * 150, tuple(map(str, order.tolist())))
    firsts = units.order_P[units.start_U].tolist()
    assert firsts == sorted(firsts) == sorted(np.unique(order, return_index=True)[1].tolist())


@given(order=st.permutations(range(20)), seed=st.integers(0, 99))
def test_the_order_of_pairs_changes_nothing(
    order: list[int], seed: int, two_subsets: BenchmarkPairs
) -> None:
    credit_P = np.random.default_rng(seed).choice([0.0, 0.5, 1.0], size=20)
    moved = replace(
        two_subsets,
        pairs=tuple(two_subsets.pairs[place] for place in order),
        subset_P=tuple(two_subsets.subset_P[place] for place in order),
        row_id_P=tuple(two_subsets.row_id_P[place] for place in order),
    )
    before = benchmark_score(credit_P, pairs=two_subsets, ties="half")
    after = benchmark_score(credit_P[order], pairs=moved, ties="half")
    assert after.headline.score == pytest.approx(before.headline.score)
    by_name = {one.subset: one.accuracy for one in after.subsets}
    assert by_name == pytest.approx({one.subset: one.accuracy for one in before.subsets})
