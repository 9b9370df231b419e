"""Comparing two models: paired bootstrap, McNemar."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray

from encore.benchmarks.paired_comparison import Comparison, compare_credits

pytestmark = pytest.mark.services

Z = NormalDist().inv_cdf(0.975)
Credits = NDArray[np.float64]


def split_of(only_first: int, only_second: int, num: int) -> tuple[Credits, Credits]:
    """Return credits of two models that differ on so many pairs and are right on all others."""
    first_P, second_P = np.ones(num), np.ones(num)
    second_P[:only_first] = 0.0
    first_P[only_first : only_first + only_second] = 0.0
    return first_P, second_P


def compared(only_first: int, only_second: int, num: int) -> Comparison:
    return compare_credits(*split_of(only_first, only_second, num))


def test_mcnemar_is_a_fair_coin_for_each_pair_that_differs():
    # By hand, of five won and one lost: two times (1 + 6) of 2^6 ways.
    expected = {(5, 1): 14 / 64, (3, 3): 1.0, (0, 0): 1.0, (22, 0): 2 / 2**22}
    for (first, second), p in expected.items():
        comparisons = [
            compared(first, second, num) for num in (22, 740)
        ]  # only pairs that differ count
        assert [comparison.mcnemar_p for comparison in comparisons] == pytest.approx([p, p])


def test_credits_between_right_and_wrong_have_no_mcnemar():
    """A judge that contradicts itself on a pair is worth one half there: half a discordant pair.

    740 pairs. On 296 the judge contradicts itself, and the reference is right on 266 of them; on
    118 others the judge alone is right. The difference is 118 - 266/2 + 30/2 = 0 pairs, so a test
    that counts 148 pairs against 266 (p = 7e-9) is one of something else.
    """
    judge_P = np.concatenate([np.full(296, 0.5), np.ones(444)])
    reference_P = np.concatenate([np.ones(266), np.zeros(30), np.zeros(118), np.ones(326)])
    for comparison in (
        compare_credits(judge_P, reference_P),
        compare_credits(reference_P, judge_P),
    ):
        assert comparison.difference == pytest.approx(0, abs=1e-12)
        assert comparison.ci_low < -0.02 < 0.02 < comparison.ci_high
        assert comparison.mcnemar_p is None
        assert {comparison.num_only_first, comparison.num_only_second} == {148, 266}


# --- the bootstrap --------------------------------------------------------------------------------


def test_the_interval_has_its_normal_limit_and_pairs_count():
    first_P, second_P = split_of(60, 38, 740)
    comparison = compare_credits(first_P, second_P)
    assert comparison.difference == pytest.approx(22 / 740)
    # The normal limit: variance of a difference of (60 + 38)/740 ones less 22/740 squared, by 740.
    half_width = Z * math.sqrt((98 / 740 - (22 / 740) ** 2) / 740)
    assert comparison.ci_low == pytest.approx(22 / 740 - half_width, abs=0.002)
    # Pairing: with no pair lost the interval excludes 0, with 100 won and lost beside it does not.
    sure, unsure = compared(22, 0, 740), compared(122, 100, 740)
    assert sure.difference == pytest.approx(unsure.difference)
    assert sure.ci_low > 0.015
    assert unsure.ci_low < 0 < unsure.mcnemar_p - 0.05


@pytest.mark.parametrize(("won", "lost", "num_pairs"), [(0, 0, 80), (1, 1, 80), (3, 0, 50)])
def test_the_interval_is_that_of_bonett_and_price(won, lost, num_pairs):
    """With one more pair won and one lost: p = (won + 1) / (n + 2), q = (lost + 1) / (n + 2)."""
    comparison = compared(won, lost, num_pairs)
    p, q = (won + 1) / (num_pairs + 2), (lost + 1) / (num_pairs + 2)
    half_width = Z * math.sqrt((p + q - (p - q) ** 2) / (num_pairs + 2))
    ends = (p - q - half_width, p - q + half_width)
    assert (comparison.ci_low, comparison.ci_high) == pytest.approx(ends)


@pytest.mark.parametrize("num_pairs", [50, 80, 200])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("weighting", ["one subset", "examples", "subsets"])
def test_the_interval_covers_where_few_pairs_differ(num_pairs, share, weighting):
    """1,000 studies have a standard error of 0.7 %. Subset b has a fifth of the pairs."""
    rng, num_covered = np.random.default_rng(num_pairs), 0
    names = None
    if weighting != "one subset":
        names = ["b" if index % 5 == 0 else "a" for index in range(num_pairs)]
    for _ in range(1000):
        # A share wins, half as many lose: the true difference is half of the share in both subsets.
        draw_P = rng.random(num_pairs)
        first_P = np.where(draw_P < share, 1.0, 0.0)
        second_P = np.where(draw_P > 1 - share / 2, 1.0, 0.0)
        comparison = compare_credits(
            first_P,
            second_P,
            subset_P=names,
            weighting="subsets" if weighting == "subsets" else "examples",
        )
        num_covered += comparison.ci_low <= share / 2 <= comparison.ci_high
    assert num_covered >= 930


def test_pairs_of_one_prompt_are_one_coin_and_one_draw():
    rng = np.random.default_rng(0)
    first_P, second_P = rng.integers(0, 2, (2, 60)).astype(np.float64)
    once = compare_credits(first_P, second_P)
    copied = compare_credits(
        np.repeat(first_P, 5), np.repeat(second_P, 5), group_P=np.repeat(np.arange(60), 5)
    )
    assert copied.difference == pytest.approx(once.difference)
    width, copied_width = (comparison.ci_high - comparison.ci_low for comparison in (once, copied))
    assert copied_width == pytest.approx(width, rel=0.04)
    assert copied.mcnemar_p == pytest.approx(once.mcnemar_p, abs=0.02)
    assert compare_credits(np.repeat(first_P, 5), np.repeat(second_P, 5)).mcnemar_p != (
        pytest.approx(once.mcnemar_p, abs=0.02)
    )


def test_subsets_keep_their_size_and_can_weigh_alike():
    # The first model is right on all of a, both are right on b: nothing varies within a subset, so
    # the interval has the two imagined pairs' width alone.
    first_P, second_P = split_of(30, 0, 100)
    names = ("a",) * 30 + ("b",) * 70
    within_subsets = compare_credits(first_P, second_P, subset_P=names)
    across_subsets = compare_credits(first_P, second_P)
    assert across_subsets.ci_low < 0.25 < within_subsets.ci_low
    assert within_subsets.ci_high < 0.35 < across_subsets.ci_high
    equal_subsets = compare_credits(first_P, second_P, subset_P=names, weighting="subsets")
    assert equal_subsets.difference == pytest.approx((1.0 + 0.0) / 2)


def test_thousands_of_different_differences_keep_the_interval_of_the_pairs():
    """A mean over 1,000 draws has as many values; they are drawn in steps."""
    rng = np.random.default_rng(0)
    first_P, second_P = rng.integers(0, 1001, size=5000) / 1000, rng.integers(0, 2, size=5000) * 1.0
    delta_P = first_P - second_P
    comparison = compare_credits(first_P, second_P)
    half_width = Z * delta_P.std() / math.sqrt(5000)
    # Quantiles of 10,000 draws with standard deviation 0.0082 are good to about 0.0003.
    ends = (delta_P.mean() - half_width, delta_P.mean() + half_width)
    assert (comparison.ci_low, comparison.ci_high) == pytest.approx(ends, abs=0.001)
