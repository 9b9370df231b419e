"""Correlations against scipy, and the null band against labels that really are swapped."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from encore.analysis.analyze import analyze
from encore.analysis.correlation import (
    fisher_interval,
    null_band,
    null_swings,
    pearson_p_value,
    pearson_r,
    spearman_rho,
)
from encore.analysis.pair_counts import PairCounts
from encore.analysis.statistics import TIE_POLICIES, TiePolicy
from tests.ratings_files import ratings_table

NUM_LEVELS = 11
BLOCKS = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("num_values", [3, 4, 10, 20, 100])
def test_r_p_interval_and_ranks_are_those_of_scipy(num_values: int) -> None:
    rng = np.random.default_rng(num_values)
    for slope in (0.0, 0.5, 5.0):
        x = rng.normal(size=num_values)
        y = np.round(slope * x + rng.normal(size=num_values), 1)  # rounded: ranks tie
        expected = scipy.stats.pearsonr(x, y)
        r = pearson_r(x, y)
        assert r == pytest.approx(expected.statistic, abs=1e-12)
        assert pearson_p_value(r, num_values=num_values) == pytest.approx(expected.pvalue, rel=1e-9)
        interval = expected.confidence_interval(0.95)
        assert fisher_interval(r, num_values=num_values) == pytest.approx(interval, abs=1e-12)
        assert spearman_rho(x, y) == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([], []),
        ([1.0, 2.0], [1.0, 2.0]),
        ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]),
        ([1.0, 2.0, 3.0], [0.5, 0.5, 0.5]),
        ([1.0, 2.0, 3.0], [0.5, 0.5, 0.5 + 1e-16]),
        ([1.0, 2.0, 3.0], [0.1 + 0.2, 0.3, 0.3]),  # equal up to rounding
        ([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]),
    ],
)
def test_fewer_than_three_or_a_constant_have_no_correlation(x: list[float], y: list[float]) -> None:
    assert pearson_r(np.array(x), np.array(y)) is None


@pytest.mark.parametrize("num_values", [3, 4, 7, 10, 20])
def test_the_same_order_has_rank_correlation_of_exactly_one(num_values: int) -> None:
    # Not 1 - 1e-16, whose p for three values would be 1e-8 and not 0.
    x = np.random.default_rng(num_values).random(num_values)
    assert spearman_rho(x, x**3) == 1.0
    assert spearman_rho(x, -(x**3)) == -1.0
    assert pearson_p_value(1.0, num_values=num_values) == 0.0


# --- null band --------------------------------------------------------------------------------


def correlated_ratings(
    rng: np.random.Generator, *, num_pairs: int, block_of: list[int], rho: float
) -> np.ndarray:
    """Ratings [pairs, 2, rules] on a grid; rules of a block correlate at rho, others not at all.

    The two responses of a pair are alike, so the labels mean nothing. Rules that follow each other
    are of like spread, so that the accuracies of a block rise and fall along the axis of entropy.
    """
    spread = np.linspace(0.05, 0.5, len(block_of))
    shared = rng.normal(size=(num_pairs, 2, max(block_of) + 1))[:, :, block_of]
    own = rng.normal(size=(num_pairs, 2, len(block_of)))
    raw = 0.5 + spread * (math.sqrt(rho) * shared + math.sqrt(1 - rho) * own)
    return np.round(np.clip(raw, 0, 1) * (NUM_LEVELS - 1)) / (NUM_LEVELS - 1)


def counts_of(rating: np.ndarray) -> PairCounts:
    sign = np.sign(rating[:, 0] - rating[:, 1])
    return PairCounts(
        num_pairs=len(sign),
        num_one_sided=0,
        wins_R=(sign > 0).sum(axis=0),
        losses_R=(sign < 0).sum(axis=0),
        ties_R=(sign == 0).sum(axis=0),
        sign_gram_RR=(sign.T @ sign).astype(np.int64),
        cells=(),
    )


def entropies(rating: np.ndarray) -> np.ndarray:
    columns = rating.reshape(-1, rating.shape[2]).T
    return np.array([scipy.stats.entropy(np.unique(c, return_counts=True)[1]) for c in columns])


def accuracies(sign: np.ndarray, policy: TiePolicy) -> np.ndarray:
    wins, ties = (sign > 0).sum(axis=0), (sign == 0).sum(axis=0)
    if policy == "untied":
        return wins / (len(sign) - ties)
    return (wins + {"half": 0.5, "strict": 0.0, "inclusive": 1.0}[policy] * ties) / len(sign)


@pytest.mark.parametrize("policy", TIE_POLICIES)
def test_the_band_is_that_of_labels_swapped_by_a_coin_toss_per_pair(policy: TiePolicy) -> None:
    rng = np.random.default_rng(3)
    rating = correlated_ratings(rng, num_pairs=400, block_of=[0] * 6, rho=0.7)
    sign, h = np.sign(rating[:, 0] - rating[:, 1]), entropies(rating)
    flips = rng.choice([-1, 1], size=(4000, 400, 1))
    r = [np.corrcoef(h, accuracies(flip * sign, policy))[0, 1] for flip in flips]
    counts = counts_of(rating)
    band = null_band(h, counts, null_swings(counts), accuracy=policy)
    # 2,000 and 4,000 draws: the quantiles' own errors are about 0.01 to 0.02.
    assert band == pytest.approx(tuple(np.quantile(r, [0.025, 0.975])), abs=0.06)


def test_the_band_covers_random_labels_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    covered: dict[TiePolicy, int] = dict.fromkeys(("half", "untied"), 0)
    for _ in range(200):
        rating = correlated_ratings(rng, num_pairs=300, block_of=BLOCKS, rho=0.9)
        counts, h = counts_of(rating), entropies(rating)
        swings = null_swings(counts)
        sign = np.sign(rating[:, 0] - rating[:, 1])
        for policy in covered:
            low, high = null_band(h, counts, swings, accuracy=policy)
            covered[policy] += bool(low <= np.corrcoef(h, accuracies(sign, policy))[0, 1] <= high)
    # 95 % of 200 is 190; three standard errors are 3 * sqrt(200 * 0.95 * 0.05) = 9.
    assert all(181 <= number <= 199 for number in covered.values())


def test_rules_without_entropy_or_accuracy_are_left_out_of_the_correlation() -> None:
    rng = np.random.default_rng(9)
    rows = [
        (f"p{i}", "s", response, f"r{k}", float(rng.integers(0, k + 2)) / 10)
        for i in range(40)
        for response in ("chosen", "rejected")
        for k in range(4)
    ]
    rows += [(f"p{i}", "s", "chosen", "without-pairs", 0.1 * (i % 3)) for i in range(40)]
    rows += [(f"p{i}", "s", r, "of-nulls", None) for i in range(40) for r in ("chosen", "rejected")]
    rows += [(f"p{i}", "s", r, "constant", 0.5) for i in range(40) for r in ("chosen", "rejected")]
    found = {(c.entropy, c.accuracy): c for c in analyze(ratings_table(rows)).correlation}
    assert found["discrete", "half"].num_rules == 5  # the constant rule has entropy 0, accuracy 1/2
    assert found["discrete", "untied"].num_rules == 4  # ... but never an untied pair
    assert found["differential", "half"].num_rules == 4  # ... and no density
    assert all(c.pearson_r is not None and c.null_high is not None for c in found.values())
