"""Two runs over the same pairs: figures by other libraries, intervals by resampled pairs."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import cohen_kappa_score

from encore.analysis.entropy import entropy_weights
from encore.analysis.run_comparison import RunComparison, compare_runs
from encore.core.errors import InputError
from encore.warehouse import PairRatings
from tests.worlds.ratings import rated_pairs, table_of_pairs

NUM_PAIRS = 150


def two_runs() -> tuple[PairRatings, PairRatings]:
    """Return ratings of three rules on eleven levels, and the same with noise and a few gaps."""
    rng = np.random.default_rng(0)
    first = np.round(rng.beta(2, 2, size=(2, NUM_PAIRS, 3)), 1)
    second = np.round(np.clip(first + 0.1 * rng.normal(size=first.shape) + 0.05, 0, 1), 1)
    second[rng.random(second.shape) < 0.05] = np.nan
    return rated_pairs(*first), rated_pairs(*second)


def compared(
    first: PairRatings, second: PairRatings, *, num_draws: int = 100, seed: int = 0
) -> RunComparison:
    tables = [table_of_pairs(run) for run in (first, second)]
    return compare_runs(*tables, num_draws=num_draws, seed=seed)


def entropy(ratings: np.ndarray) -> float:
    return float(scipy.stats.entropy(np.unique(ratings, return_counts=True)[1]))


def half(chosen: np.ndarray, rejected: np.ndarray) -> float:
    return float(((np.sign(chosen - rejected) + 1) / 2).mean())


def test_every_figure_is_that_of_scipy_and_scikit_learn():
    first, second = two_runs()
    comparison = compared(first, second)
    is_rated_2PR = ~np.isnan(second.rating_2PR)
    entropies = [
        [entropy(run.rating_2PR[:, :, k][is_rated_2PR[:, :, k]]) for k in range(3)]
        for run in (first, second)
    ]
    change_R = np.subtract(*(entropy_weights(np.array(values)) for values in reversed(entropies)))
    for k, row in enumerate(comparison.rules):
        x_2P, y_2P = first.rating_2PR[:, :, k], second.rating_2PR[:, :, k]
        is_rated_2P = is_rated_2PR[:, :, k]
        x, y = x_2P[is_rated_2P], y_2P[is_rated_2P]
        # Pairs with both responses rated in both runs, shape [2, pairs].
        pairs_x, pairs_y = (values[:, is_rated_2P.all(axis=0)] for values in (x_2P, y_2P))
        levels = [np.rint(10 * values).astype(int) for values in (x, y)]
        assert (row.num_ratings, row.num_pairs) == (len(x), pairs_x.shape[1])
        tie_rates = [(chosen == rejected).mean() for chosen, rejected in (pairs_x, pairs_y)]
        expected = {
            "agreement": (x == y).mean(),
            "kappa": cohen_kappa_score(*levels, labels=range(11), weights="quadratic"),
            "correlation": scipy.stats.pearsonr(x, y).statistic,
            "mean_difference": (y - x).mean(),
            "entropy_difference": entropies[1][k] - entropies[0][k],
            "accuracy_difference": half(*pairs_y) - half(*pairs_x),
            "weight_difference": change_R[k],
            "flip_rate": (np.diff(pairs_x, axis=0) * np.diff(pairs_y, axis=0) < 0).mean(),
            "tie_rate": tie_rates[0],
            "tie_difference": tie_rates[1] - tie_rates[0],
        }
        for name, value in expected.items():
            assert getattr(row, name).value == pytest.approx(value, abs=1e-9), name


def test_intervals_are_those_of_pairs_really_resampled():
    first, second = (np.nan_to_num(run.rating_2PR, nan=0.5) for run in two_runs())
    rule = compared(rated_pairs(*first), rated_pairs(*second), num_draws=1000).rules[0]
    rng = np.random.default_rng(9)
    kappas, changes = [], []
    for _ in range(1000):
        rows = rng.integers(0, NUM_PAIRS, NUM_PAIRS)
        x, y = first[:, rows, 0], second[:, rows, 0]
        by_chance = x.var() + y.var() + (x.mean() - y.mean()) ** 2
        kappas.append(1 - ((x - y) ** 2).mean() / by_chance)
        changes.append(half(*y) - half(*x))
    for estimate, drawn in ((rule.kappa, kappas), (rule.accuracy_difference, changes)):
        tolerance = 0.3 * float(np.std(drawn))  # of quantiles of 1,000 draws, more than three sds
        expected = np.quantile(drawn, [0.025, 0.975])
        assert (estimate.low, estimate.high) == pytest.approx(tuple(expected), abs=tolerance)


def test_the_seed_draws_the_resamples_and_the_order_of_pairs_and_rules_does_not_matter():
    first, second = two_runs()
    turned = dataclasses.replace(
        second,
        rule_ids=second.rule_ids[::-1],
        chosen_PR=second.chosen_PR[:, ::-1],
        rejected_PR=second.rejected_PR[:, ::-1],
    ).take(np.arange(NUM_PAIRS)[::-1])
    comparison, of_turned, of_seed_4 = (
        compared(first, run, seed=seed) for run, seed in ((second, 3), (turned, 3), (second, 4))
    )
    assert comparison == of_turned
    assert comparison.rules[0].kappa.value == of_seed_4.rules[0].kappa.value
    assert comparison.rules[0].kappa.low != of_seed_4.rules[0].kappa.low


def test_a_pair_is_matched_by_its_source_and_its_id():
    # Two sources have pairs of the same two ids. The runs agree on source a and are opposite on b.
    pair_ids, rejected = np.array(["0", "1", "0", "1"], dtype=object), np.full((4, 1), 0.5)
    first, second = (
        dataclasses.replace(rated_pairs(chosen, rejected, source=[*"aabb"]), pair_id_P=pair_ids)
        for chosen in ([[1.0], [0.0], [1.0], [0.0]], [[1.0], [0.0], [0.0], [1.0]])
    )
    comparison = compared(first, second)
    [row] = comparison.rules
    # Four pairs; equal are four rejected ratings and two of four chosen ones: 6 of 8. On source b
    # both pairs change their order: 2 of 4.
    assert (comparison.num_pairs, row.num_pairs, row.num_ratings) == (4, 4, 8)
    assert (row.agreement.value, row.flip_rate.value) == (6 / 8, 2 / 4)
    # The same ids in sources of another name are other pairs.
    elsewhere = dataclasses.replace(second, source_P=np.array([*"ccdd"], dtype=object))
    with pytest.raises(InputError, match="no pair in common"):
        compared(first, elsewhere)


def test_a_constant_rule_has_no_correlation_and_kappa_only_of_different_levels():
    half_PR = np.full((NUM_PAIRS, 1), 0.5)
    low, high = rated_pairs(half_PR, half_PR), rated_pairs(half_PR + 0.1, half_PR + 0.1)
    (same,), (different,) = compared(low, low).rules, compared(low, high).rules
    assert (same.correlation.value, same.kappa.value, same.agreement.value) == (None, None, 1.0)
    assert different.kappa.value == pytest.approx(0.0)


def test_only_common_pairs_rules_and_ratings_are_compared_and_the_others_noted():
    first, second = two_runs()
    fewer = dataclasses.replace(second.take(np.arange(20)), rule_ids=("rule-00", "rule-01", "else"))
    fewer.chosen_PR[:, 1] = fewer.rejected_PR[:, 1] = np.nan
    comparison = compared(first, fewer)
    assert [row.rule_id for row in comparison.rules] == ["rule-00", "rule-01"]
    assert comparison.num_pairs == 20
    assert comparison.rules[1].kappa.value is None
    notes = "\n".join(comparison.notes)
    for part in ("else, rule-02", "130 and 0", "20 pairs are few"):
        assert part in notes
    json.dumps(dataclasses.asdict(comparison), allow_nan=False)
    with pytest.raises(InputError, match="no pair in common"):
        compared(first, dataclasses.replace(second, pair_id_P=second.pair_id_P + "x"))
    with pytest.raises(InputError, match="no rule in common"):
        compared(first, dataclasses.replace(second, rule_ids=("a", "b", "c")))
