"""Agreement between raters: figures by other libraries, intervals by simulated annotators."""

from __future__ import annotations

import time

import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import cohen_kappa_score

from encore.analysis import rater_agreement as agreement
from encore.analysis.bootstrap import Estimate, resampled_interval
from encore.analysis.rater_agreement import (
    alpha_interval,
    comparisons_needed,
    kappa_interval,
    pearson_interval,
    win_rate_interval,
    win_rate_power,
)
from tests.reference import reference_alpha

#: Krippendorff's own example (Computing Krippendorff's Alpha-Reliability, 2011, C).
N = np.nan
EXAMPLE = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, N, N, N],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, N, 3],
        [N, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, N],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, N],
    ]
)


def graded(seed: int = 0, *, num_items: int = 60) -> np.ndarray:
    """Return labels of four raters on six uneven levels, a fifth of them missing."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=num_items)
    raw = np.clip(np.rint(truth + 0.7 * rng.normal(size=(4, num_items)) + 2), 0, 5)
    labels = np.array([0, 0.1, 0.25, 0.5, 0.9, 1.0])[raw.astype(int)]
    labels[rng.random(labels.shape) < 0.2] = np.nan
    return labels


def ends(estimate: Estimate) -> list[float | None]:
    return [estimate.value, estimate.low, estimate.high]


def test_alpha_of_krippendorffs_example_is_the_one_he_printed():
    assert alpha_interval(EXAMPLE).value == pytest.approx(0.815, abs=5e-4)


def test_alpha_of_two_values_is_the_one_derived_by_hand():
    # Krippendorff's example A, ten units. Four of them have labels 0 and 1, so the coincidences
    # o(0, 1) are 4. Of the 20 labels 14 are 0 and 6 are 1: alpha = 1 - (20 - 1) · 4 / (14 · 6).
    labels = np.array([[0, 1, 0, 0, 0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 0, 0, 0.0]])
    assert alpha_interval(labels).value == pytest.approx(1 - 76 / 84, abs=1e-12)  # 0.095
    assert reference_alpha(EXAMPLE) == pytest.approx(0.815, abs=5e-4)


def test_every_draw_is_alpha_by_definition_of_the_items_that_were_drawn():
    for seed in range(5):
        labels = graded(seed)
        assert alpha_interval(labels).value == pytest.approx(reference_alpha(labels), abs=1e-12)
        labels_of_two = labels[:, (~np.isnan(labels)).sum(axis=0) >= 2]
        codes, times, values, _ = agreement._patterns(np.sort(labels_of_two, axis=0))
        sparse, times = agreement._label_counts(codes, len(values)), times.astype(int)
        rng = np.random.default_rng(seed)
        weights = rng.multinomial(times.sum(), times / times.sum(), size=20)
        figures = agreement._alphas(sparse, weights.astype(float))
        for weight, alpha in zip(weights, figures, strict=True):
            drawn = np.append(values, np.nan)[np.repeat(codes, weight, axis=1)]
            assert alpha == pytest.approx(reference_alpha(drawn), abs=1e-12)


def test_every_draw_is_scikit_learns_kappa_of_the_items_that_were_drawn():
    labels = graded(3)[:2]
    codes, times, values, _ = agreement._patterns(labels[:, ~np.isnan(labels).any(axis=0)])

    def package(weight: np.ndarray) -> float:
        rows = np.repeat(codes, weight, axis=1)
        return cohen_kappa_score(*rows, labels=range(len(values)), weights="quadratic")

    expected = package(times.astype(int))
    assert kappa_interval(*labels).value == pytest.approx(expected, abs=1e-12)
    drawn = np.random.default_rng(0).multinomial(times.sum(), times / times.sum(), size=20)
    figures = agreement._kappas(codes - 1.5, drawn.astype(float))
    for weight, kappa in zip(drawn, figures, strict=True):
        assert kappa == pytest.approx(package(weight), abs=1e-12)


def test_an_undefined_figure_is_null():
    constant, varied = np.zeros(6), np.array([0, 1, 0, 1, 1, 0.0])
    nobody = np.full(6, np.nan)
    assert alpha_interval(np.stack([constant, constant])) == Estimate()
    assert alpha_interval(np.stack([varied, nobody])) == Estimate()
    # Scikit-learn says 0 of a rater who always says the same; that is no measure of agreement.
    for second in (constant, varied, nobody):
        assert kappa_interval(second, constant) == kappa_interval(constant, second) == Estimate()
    assert pearson_interval(constant, varied) == Estimate()
    # Perfect agreement is 1, and nothing says how far from it other items are.
    assert alpha_interval(np.stack([varied, varied])) == Estimate(value=1.0, low=1.0, high=1.0)
    # Two raters who never vary (every sample is the same), or one item with two labels: a value,
    # and no interval.
    for labels in (np.stack([constant, constant + 1]), np.array([[0.0, N], [1.0, 1.0]])):
        estimate = alpha_interval(labels)
        assert estimate.value is not None
        assert estimate == Estimate(value=estimate.value)


def test_an_interval_is_the_same_whatever_the_order_of_raters_and_items():
    estimate, of_reversed = (alpha_interval(labels) for labels in (graded(), graded()[::-1, ::-1]))
    assert ends(estimate) == pytest.approx(ends(of_reversed), abs=1e-12)
    assert estimate.low < estimate.value < estimate.high


#: Share of items in a class; probability that a rater calls an item in it true, and one outside.
SHARE, IN_CLASS, OUTSIDE = 0.3, 0.85, 0.1


def yes_or_no(rng: np.random.Generator, num_items: int, num_raters: int) -> np.ndarray:
    """Return labels of raters who see each item's class through the same noise."""
    chance = np.where(rng.random(num_items) < SHARE, IN_CLASS, OUTSIDE)
    return (rng.random((num_raters, num_items)) < chance).astype(float)


#: Two labels of an item differ with 2 E[q(1 - q)], two of any with 2 E[q] (1 - E[q]), where q is
#: how probably an item is called true. So alpha is Var(q) / (E[q] (1 - E[q])), and so is kappa, as
#: both raters have the mean E[q].
MEAN = SHARE * IN_CLASS + (1 - SHARE) * OUTSIDE
TRUTH = SHARE * (1 - SHARE) * (IN_CLASS - OUTSIDE) ** 2 / (MEAN * (1 - MEAN))


def alpha_study(rng: np.random.Generator) -> tuple[Estimate, float]:
    """Return alpha of three raters of 150 items with one label in ten missing, and its truth."""
    labels = yes_or_no(rng, 150, 3)
    labels[rng.random(labels.shape) < 0.1] = np.nan
    return alpha_interval(labels), TRUTH


def few_items_study(rng: np.random.Generator) -> tuple[Estimate, float]:
    """Return alpha of two raters of 40 items, and its truth.

    Labels are normal numbers that correlate by 4/5. Alpha is the correlation of their ranks.
    """
    labels = rng.normal(size=40) * 2 + rng.normal(size=(2, 40))
    return alpha_interval(labels), 6 / np.pi * np.arcsin(2 / 5)


def kappa_study(rng: np.random.Generator) -> tuple[Estimate, float]:
    """Return kappa of two raters of 150 items, and its truth."""
    return kappa_interval(*yes_or_no(rng, 150, 2)), TRUTH


@pytest.mark.parametrize(
    ("num_studies", "lowest_coverage", "highest_coverage"),
    # 100 studies: a method that covers 95 % lies within these bounds in 99.7 % of all seeds.
    [(100, 0.88, 1.0), pytest.param(500, 0.93, 0.97, marks=pytest.mark.full)],
)
@pytest.mark.parametrize("study", [alpha_study, few_items_study, kappa_study])
def test_intervals_cover_the_agreement_of_the_model(
    study, num_studies, lowest_coverage, highest_coverage
):
    rng = np.random.default_rng(15)
    studies = [study(rng) for _ in range(num_studies)]
    coverage = np.mean([estimate.low <= truth <= estimate.high for estimate, truth in studies])
    assert lowest_coverage <= coverage <= highest_coverage


def test_1000_draws_over_20000_labels_take_at_most_10_seconds():
    """Two raters use 101 levels, so that hardly two items are labelled alike."""
    rng = np.random.default_rng(0)
    labels = np.clip(rng.random(10_000) + 0.2 * rng.normal(size=(2, 10_000)), 0, 1).round(2)
    began = time.process_time()
    estimate = alpha_interval(labels)
    assert time.process_time() - began < 10
    assert estimate.low < estimate.value < estimate.high


def test_few_items_have_an_interval_as_wide_as_students_t_asks():
    # Five items of two patterns, three and two; the figure is (first - second) / 10, here 0.1. In
    # a draw the first is binomial (5, 3/5), so the figure's sd is 2 sqrt(5 · 0.6 · 0.4) / 10 =
    # 0.2191; times sqrt(5/4) and over 1 - 0.1² on Fisher's scale 0.2474. Student's t of 4 degrees
    # of freedom is 2.7764: atanh(0.1) -+ 0.6870 = -0.5866 and 0.7873. (The normal's 1.96 would give
    # -0.385 and 0.585.) The sd of 1,000 draws is right to 2 %.
    estimate = resampled_interval(
        0.1, lambda weight_DP: (weight_DP[:, 0] - weight_DP[:, 1]) / 10, np.array([3.0, 2.0])
    )
    assert estimate.value == 0.1
    assert np.arctanh([estimate.low, estimate.high]) == pytest.approx([-0.5866, 0.7873], abs=0.05)


def test_pearsons_interval_is_that_of_scipy():
    x, y = np.random.default_rng(2).normal(size=(2, 30))
    y[3] = np.nan
    expected = scipy.stats.pearsonr(np.delete(x, 3), np.delete(y, 3))
    low, high = expected.confidence_interval()
    estimate = pearson_interval(x, y)
    assert ends(estimate) == pytest.approx([expected.statistic, low, high])


def independent(wins: list[bool]) -> Estimate:
    """Return the win rate of comparisons that each have another pair of rules."""
    return win_rate_interval(wins, group_C=[str(pair) for pair in range(len(wins))])


@pytest.mark.parametrize(("wins", "number"), [(5, 6), (0, 4), (7, 7), (83, 100)])
def test_a_win_rates_interval_is_the_exact_binomial_one(wins, number):
    expected = scipy.stats.binomtest(wins, number).proportion_ci(method="exact")
    estimate = independent([True] * wins + [False] * (number - wins))
    assert ends(estimate) == pytest.approx([wins / number, *expected])


def test_three_annotators_who_always_agree_count_as_one():
    pairs = [f"{pair}" for pair in range(40)]
    wins = [pair % 5 > 0 for pair in range(40)]
    alone = independent(wins)
    together = win_rate_interval(wins * 3, group_C=pairs * 3)
    # Student's t of 39 instead of 119 degrees of freedom makes it a little wider.
    assert together.value == alone.value
    assert (together.low, together.high) == pytest.approx((alone.low, alone.high), abs=0.02)
    assert independent(wins * 3).high < together.high
    # All won: how pairs differ cannot be seen, so each pair counts once.
    assert win_rate_interval([True] * 6, group_C=list("aabbcc")).low == pytest.approx(
        independent([True] * 3).low
    )
    assert win_rate_interval([True, False], group_C=["a", "a"]) == Estimate(value=0.5)


def test_few_groups_count_for_less_by_the_ratio_of_students_t():
    # Three groups of two: both won, both lost, one of each. The rate is 1/2, its excess by group 1,
    # -1 and 0: variance 3/2 · 2 / 6² = 1/12. Independent it would be (1/4) / 5 = 1/20, so the
    # effect is 5/3 and the six count as 3.6. t of 5 and of 2 degrees of freedom are 2.5706 and
    # 4.3027: 3.6 · (2.5706 / 4.3027)² = 1.2850, half of them won.
    wins = [True, True, False, False, True, False]
    estimate = win_rate_interval(wins, group_C=list("aabbcc"))
    low = scipy.stats.beta.ppf(0.025, 0.6425, 1.6425)
    assert ends(estimate) == pytest.approx([0.5, low, 1 - low], abs=1e-4)


def exact_power(num_comparisons: int) -> float:
    """Return the probability that scipy's binomial test at 5 % shows a win rate of 83 %."""
    wins = np.arange(num_comparisons + 1)
    p_values = np.array([scipy.stats.binomtest(k, num_comparisons).pvalue for k in wins])
    return float(scipy.stats.binom.pmf(wins, num_comparisons, 0.83)[p_values < 0.05].sum())


def test_the_power_of_the_papers_study_is_that_of_the_exact_binomial_test():
    needed = comparisons_needed()
    assert exact_power(needed - 1) < 0.8 <= min(map(exact_power, range(needed, needed + 20)))
    for number in (6, 12, 20, 40):
        assert float(win_rate_power(number, win_rate=0.83)) == pytest.approx(exact_power(number))
    # Five wins of six: 83 %, and nothing is shown.
    assert independent([True] * 5 + [False]).low < 0.5


def test_three_annotators_whose_choices_correlate_need_twice_the_comparisons():
    # Correlation 0.5 of two choices on a pair: the design effect is 1 + (3 - 1) · 0.5 = 2. Each
    # pair's win rate is from a beta distribution; its parameters sum to 1 / 0.5 - 1 = 1.
    num_pairs = -(-2 * comparisons_needed() // 3)
    win_rate = agreement.PAPER_WIN_RATE
    rng = np.random.default_rng(83)
    wins = rng.binomial(3, rng.beta(win_rate, 1 - win_rate, size=(600, num_pairs)))
    pair_ids = np.repeat([str(pair) for pair in range(num_pairs)], 3)
    lows = [
        win_rate_interval((np.arange(3) < row[:, None]).ravel(), group_C=pair_ids).low
        for row in wins
    ]
    assert np.mean(np.array(lows) > 0.5) >= 0.75
