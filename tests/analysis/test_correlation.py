"""Correlations against scipy, and the null band against labels that really are swapped."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from encore.analysis.analyze import analyze
from encore.analysis.correlation import (
    fisher_interval,
    null_band,
    null_swings,
    pearson_p_value,
    pearson_r,
    spearman_rho,
)
from encore.analysis.pair_counts import PairOutcomes
from encore.analysis.statistics import TIE_POLICIES, TiePolicy
from tests.ratings_files import ratings_table

NUM_LEVELS = 11


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


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1)), min_size=3, max_size=12))
def test_r_lies_in_its_interval_and_within_one(points: list[tuple[float, float]]) -> None:
    x, y = np.array(points).T
    r = pearson_r(x, y)
    if r is not None:
        low, high = fisher_interval(r, num_values=len(points))
        assert -1.0 <= low <= r <= high <= 1.0
        assert 0.0 <= pearson_p_value(r, num_values=len(points)) <= 1.0


# --- null band --------------------------------------------------------------------------------


def correlated_margins(
    rng: np.random.Generator, *, num_pairs: int, num_rules: int, rho: float
) -> np.ndarray:
    """Ratings [pairs, 2, rules] on a grid; rules correlated at rho, and of different spread."""
    shared = rng.normal(size=(num_pairs, 2, 1))
    own = rng.normal(size=(num_pairs, 2, num_rules))
    spread = np.linspace(0.05, 0.5, num_rules)
    raw = 0.5 + spread * (math.sqrt(rho) * shared + math.sqrt(1 - rho) * own)
    return np.round(np.clip(raw, 0, 1) * (NUM_LEVELS - 1)) / (NUM_LEVELS - 1)


def outcomes_of(rating: np.ndarray) -> PairOutcomes:
    sign = np.sign(rating[:, 0] - rating[:, 1])
    return PairOutcomes(
        num_pairs=len(sign),
        wins_R=(sign > 0).sum(axis=0),
        losses_R=(sign < 0).sum(axis=0),
        ties_R=(sign == 0).sum(axis=0),
        sign_gram_RR=(sign.T @ sign).astype(np.int64),
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
    rating = correlated_margins(rng, num_pairs=400, num_rules=6, rho=0.7)
    sign, h = np.sign(rating[:, 0] - rating[:, 1]), entropies(rating)
    flips = rng.choice([-1, 1], size=(4000, 400, 1))
    r = [np.corrcoef(h, accuracies(flip * sign, policy))[0, 1] for flip in flips]
    outcomes = outcomes_of(rating)
    band = null_band(h, outcomes, null_swings(outcomes), accuracy=policy)
    # 2,000 and 4,000 draws: the quantiles' own errors are about 0.01 to 0.02.
    assert band == pytest.approx(tuple(np.quantile(r, [0.025, 0.975])), abs=0.06)


def block_correlated_ratings(rng: np.random.Generator, *, num_pairs: int) -> np.ndarray:
    """Ratings [pairs, 2, 10]; rules of a block correlate at 0.9, those of different blocks at 0.

    The two responses of a pair are alike, so the labels mean nothing. Rules of a block are of like
    spread, so that their accuracies rise and fall together along the axis of entropy.
    """
    block_of = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
    spread = np.linspace(0.05, 0.5, 10)
    shared = rng.normal(size=(num_pairs, 2, 3))[:, :, block_of]
    own = rng.normal(size=(num_pairs, 2, 10))
    raw = 0.5 + spread * (math.sqrt(0.9) * shared + math.sqrt(0.1) * own)
    return np.round(np.clip(raw, 0, 1) * (NUM_LEVELS - 1)) / (NUM_LEVELS - 1)


def num_covered(num_studies: int) -> dict[TiePolicy, int]:
    """In how many studies the observed r lies within its null band."""
    rng = np.random.default_rng(4)
    covered: dict[TiePolicy, int] = dict.fromkeys(("half", "untied"), 0)
    for _ in range(num_studies):
        rating = block_correlated_ratings(rng, num_pairs=300)
        outcomes, h = outcomes_of(rating), entropies(rating)
        swings = null_swings(outcomes)
        sign = np.sign(rating[:, 0] - rating[:, 1])
        for policy in covered:
            band = null_band(h, outcomes, swings, accuracy=policy)
            assert band is not None
            r = np.corrcoef(h, accuracies(sign, policy))[0, 1]
            covered[policy] += bool(band[0] <= r <= band[1])
    return covered


def test_the_band_covers_random_labels_as_often_as_it_says() -> None:
    # 95 % of 200 is 190; three standard errors are 3 * sqrt(200 * 0.95 * 0.05) = 9.
    assert all(181 <= number <= 199 for number in num_covered(200).values())


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
