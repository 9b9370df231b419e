"""Bootstrap intervals: those of resampled pairs, and right as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats

from encore.analysis.bootstrap import middle_95
from encore.analysis.intervals import RuleInterval, entropy_interval, rule_intervals
from encore.analysis.statistics import TIE_POLICIES, SourceStatistics, rating_statistics
from encore.warehouse import open_ratings, open_warehouse
from tests.worlds.ratings import random_table, table_of


def statistics_of(table: pa.Table) -> SourceStatistics:
    with open_warehouse(open_ratings(table)) as warehouse:
        return rating_statistics(warehouse)[-1]


def intervals_of(table: pa.Table) -> dict[str, RuleInterval]:
    return {row.rule_id: row for row in rule_intervals(statistics_of(table))}


def table_of_rule(rating_P2: np.ndarray, *, rule_id: str = "r") -> pa.Table:
    """Return chosen and rejected ratings of one rule as a table; NaN is null."""
    return table_of(rating_P2[:, :1], rating_P2[:, 1:], rule_ids=[rule_id])


def drawn_pairs(rng: np.random.Generator, *, num_pairs: int) -> np.ndarray:
    """Return correlated ratings on eleven levels; the chosen response is rated a little higher."""
    shared = rng.normal(size=(num_pairs, 1))
    independent = rng.normal(size=(num_pairs, 2))
    raw = 0.5 + 0.2 * (0.7 * shared + 0.7 * independent + np.array([0.3, 0.0]))
    return np.round(np.clip(raw, 0, 1), 1)


def entropy(ratings: np.ndarray) -> float:
    return float(scipy.stats.entropy(np.unique(ratings, return_counts=True)[1]))


def test_the_middle_of_draws_has_95_percent_of_them():
    assert middle_95(np.arange(1001.0)) == (25, 975)


@pytest.mark.services
def test_intervals_of_entropy_are_those_of_pairs_really_resampled():
    rng = np.random.default_rng(1)
    rating_P2 = drawn_pairs(rng, num_pairs=300)
    interval = intervals_of(table_of_rule(rating_P2))["r"]
    draws = [rating_P2[rng.integers(0, 300, size=300)] for _ in range(4000)]
    # 2,000 and 4,000 draws: a quantile's own standard error is about 0.07 standard deviations of
    # the estimate in one and 0.04 in the other; 0.3 is more than three of both.
    h, h_D = entropy(rating_P2), np.array([entropy(draw) for draw in draws])
    low, high = np.quantile(h_D, [0.025, 0.975])
    tolerance = 0.3 * h_D.std()
    assert interval.entropy_method == "bootstrap"
    assert interval.entropy.low == pytest.approx(2 * h - high, abs=tolerance)
    assert interval.entropy.high == pytest.approx(2 * h - low, abs=tolerance)


def test_the_normal_limit_has_its_bias_and_its_second_order_term():
    # Every two of 60 levels stand against each other once: all surprisals are equal, so the first
    # order of the variance is 0. Of N = 7,200 independent ratings H lies (60 - 1) / (2 N) below the
    # truth on average, and its variance of second order is (60 - 1) / (2 N²).
    counts = np.zeros((61, 61), dtype=np.int64)
    counts[:60, :60] = 1
    h, rng = math.log(60), np.random.default_rng(0)
    estimate, method = entropy_interval(h, counts, rng=rng)
    assert method == "normal"
    assert estimate.high == pytest.approx(
        h + 59 / 14_400 + 1.959964 * math.sqrt(59 / 2) / 7200, abs=1e-9
    )
    assert estimate.low == pytest.approx(h, abs=1e-12)  # the interval contains its figure


def test_the_bound_has_its_bias_and_its_second_order_term():
    # 300 levels, each given twice: H = ln 300 and surprisals are equal. Of pairs of equal ratings
    # the truth may lie (300 - 1) / N above, with a variance of second order of 2 (300 - 1) / N².
    level_P = np.arange(300) / 300
    interval = intervals_of(table_of_rule(np.stack([level_P, level_P], axis=1)))["r"]
    half_width = 1.959964 * math.sqrt(2 * 299) / 600
    assert interval.entropy.high == pytest.approx(math.log(300) + 299 / 600 + half_width, abs=1e-6)


def test_intervals_depend_only_on_the_rule_and_the_seed():
    rng = np.random.default_rng(6)
    first = table_of_rule(drawn_pairs(rng, num_pairs=80), rule_id="one")
    second = table_of_rule(drawn_pairs(rng, num_pairs=80), rule_id="two")
    table = pa.concat_tables([first, second])
    shuffled = table.take(pa.array(rng.permutation(table.num_rows)))
    assert intervals_of(shuffled)["one"] == intervals_of(first)["one"]
    assert rule_intervals(statistics_of(first), seed=1) != rule_intervals(statistics_of(first))


def test_every_interval_contains_its_figure():
    for seed in range(5):
        statistics = statistics_of(random_table(np.random.default_rng(70 + seed), max_rows=1500))
        for rule, interval in zip(statistics.rules, rule_intervals(statistics), strict=True):
            figures = {"entropy": rule.entropy_nats}
            figures |= {policy: rule.accuracy.for_policy(policy) for policy in TIE_POLICIES}
            for name, value in figures.items():
                estimate = getattr(interval, name)
                assert estimate.value == value
                assert (estimate.low is None) == (estimate.high is None) == (value is None), name
                assert value is None or estimate.low <= value <= estimate.high, name
