"""Correlations of few or constant values, and the null band against labels really swapped."""

from __future__ import annotations

import math

import numpy as np
import pytest

from encore.analysis.analyze import analyze
from encore.analysis.correlation import pearson_p_value, pearson_r, spearman_rho
from encore.analysis.statistics import TIE_POLICIES, TiePolicy
from tests.worlds.ratings import rule_names, table_of


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([], []),
        ([1.0, 2.0], [1.0, 2.0]),
        ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]),
        ([1.0, 2.0, 3.0], [0.5, 0.5, 0.5]),
        ([1.0, 2.0, 3.0], [0.1 + 0.2, 0.3, 0.3]),  # equal up to rounding
    ],
)
def test_fewer_than_three_or_a_constant_have_no_correlation(x, y):
    assert pearson_r(np.array(x), np.array(y)) is None


@pytest.mark.parametrize("num_values", [3, 4, 7, 10, 20])
def test_the_same_order_has_rank_correlation_of_exactly_one(num_values):
    # Not 1 - 1e-16, whose p for three values would be 1e-8 and not 0.
    x = np.random.default_rng(num_values).random(num_values)
    assert spearman_rho(x, x**3) == 1.0
    assert spearman_rho(x, -(x**3)) == -1.0
    assert pearson_p_value(1.0, num_values=num_values) == 0.0


# --- null band --------------------------------------------------------------------------------


def correlated_ratings(rng: np.random.Generator, *, num_pairs: int, num_rules: int) -> np.ndarray:
    """Return ratings [pairs, 2, rules] on a grid, correlated at 0.7 and of different spread."""
    shared = rng.normal(size=(num_pairs, 2, 1))
    independent = rng.normal(size=(num_pairs, 2, num_rules))
    spread = np.linspace(0.05, 0.5, num_rules)
    raw = 0.5 + spread * (math.sqrt(0.7) * shared + math.sqrt(0.3) * independent)
    return np.round(np.clip(raw, 0, 1), 1)


def accuracies(sign: np.ndarray, policy: TiePolicy) -> np.ndarray:
    wins, ties = (sign > 0).sum(axis=0), (sign == 0).sum(axis=0)
    if policy == "untied":
        return wins / (len(sign) - ties)
    credit = {"half": 0.5, "strict": 0.0, "inclusive": 1.0}[policy]
    return (wins + credit * ties) / len(sign)


@pytest.mark.services
def test_the_null_band_is_that_of_labels_swapped_pair_by_pair():
    rng = np.random.default_rng(3)
    rating = correlated_ratings(rng, num_pairs=400, num_rules=6)
    analysis = analyze(table_of(rating[:, 0], rating[:, 1], rule_ids=rule_names(6)))
    h = [rule.entropy_nats for rule in analysis.rules]
    sign = np.sign(rating[:, 0] - rating[:, 1])
    flips = rng.choice([-1, 1], size=(4000, 400, 1))
    bands = {row.accuracy: row for row in analysis.correlation if row.entropy == "discrete"}
    for policy in TIE_POLICIES:
        r = [np.corrcoef(h, accuracies(flip * sign, policy))[0, 1] for flip in flips]
        band = (bands[policy].null_low, bands[policy].null_high)
        # 2,000 and 4,000 draws: the quantiles' own errors are about 0.01 to 0.02.
        assert band == pytest.approx(tuple(np.quantile(r, [0.025, 0.975])), abs=0.06), policy
