"""Two runs over the same pairs: figures by other libraries, intervals by resampled pairs."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import cohen_kappa_score

from encore.errors import InputError
from encore.evidence.run_comparison import RunComparison, compare_runs
from encore.warehouse import PairRatings
from encore.weighting.encore import entropy_weights
from tests.evidence.evidence_pairs import rated_pairs, table_of

NUM_PAIRS = 150


def two_runs(*, noise: float = 0.1, seed: int = 0) -> tuple[PairRatings, PairRatings]:
    """Ratings of three rules on eleven levels, and the same with noise and a few holes."""
    rng = np.random.default_rng(seed)
    first = np.round(rng.beta(2, 2, size=(2, NUM_PAIRS, 3)), 1)
    second = np.round(np.clip(first + noise * rng.normal(size=first.shape) + 0.05, 0, 1), 1)
    second[rng.random(second.shape) < 0.05] = np.nan
    return rated_pairs(*first), rated_pairs(*second)


def compared(first: PairRatings, second: PairRatings, *, num_draws: int = 200) -> RunComparison:
    return compare_runs(table_of(first), table_of(second), num_draws=num_draws)


def entropy(ratings: np.ndarray) -> float:
    return float(scipy.stats.entropy(np.unique(ratings, return_counts=True)[1]))


def half(chosen: np.ndarray, rejected: np.ndarray) -> float:
    return float(((np.sign(chosen - rejected) + 1) / 2).mean())


def test_every_figure_is_that_of_scipy_and_scikit_learn() -> None:
    first, second = two_runs()
    found = compared(first, second)
    weights_2R = []
    for run in (first, second):
        sides = np.stack([run.chosen_PR, run.rejected_PR])
        other = second if run is first else first
        common = ~np.isnan(np.stack([other.chosen_PR, other.rejected_PR]) + sides)
        entropies = [entropy(sides[:, :, k][common[:, :, k]]) for k in range(3)]
        weights_2R.append(entropy_weights(np.array(entropies)))
    for k, row in enumerate(found.rules):
        x = np.stack([first.chosen_PR[:, k], first.rejected_PR[:, k]])
        y = np.stack([second.chosen_PR[:, k], second.rejected_PR[:, k]])
        both = ~np.isnan(y)
        whole = both.all(axis=0)
        levels = [np.rint(10 * one[both]).astype(int) for one in (x, y)]
        kappa = cohen_kappa_score(*levels, labels=range(11), weights="quadratic")
        assert (row.num_ratings, row.num_pairs) == (both.sum(), whole.sum())
        assert row.agreement.value == pytest.approx((x[both] == y[both]).mean(), abs=1e-12)
        assert row.kappa.value == pytest.approx(kappa, abs=1e-9)
        r = scipy.stats.pearsonr(x[both], y[both]).statistic
        assert row.correlation.value == pytest.approx(r, abs=1e-9)
        assert row.mean_difference.value == pytest.approx((y - x)[both].mean(), abs=1e-12)
        expected = entropy(y[both]) - entropy(x[both])
        assert row.entropy_difference.value == pytest.approx(expected, abs=1e-12)
        expected = half(*y[:, whole]) - half(*x[:, whole])
        assert row.accuracy_difference.value == pytest.approx(expected, abs=1e-12)
        change = weights_2R[1][k] - weights_2R[0][k]
        assert row.weight_difference.value == pytest.approx(change, abs=1e-12)


def test_intervals_are_those_of_pairs_that_really_are_resampled() -> None:
    first, second = two_runs()
    second = dataclasses.replace(
        second,
        chosen_PR=np.nan_to_num(second.chosen_PR, nan=0.5),
        rejected_PR=np.nan_to_num(second.rejected_PR, nan=0.5),
    )
    found = compared(first, second, num_draws=1000).rules[0]
    rng = np.random.default_rng(9)
    kappas, changes = [], []
    for _ in range(1000):
        rows = rng.integers(0, NUM_PAIRS, NUM_PAIRS)
        x, y = (np.stack([run.chosen_PR, run.rejected_PR])[:, rows, 0] for run in (first, second))
        by_chance = x.var() + y.var() + (x.mean() - y.mean()) ** 2
        kappas.append(1 - ((x - y) ** 2).mean() / by_chance)
        changes.append(half(*y) - half(*x))
    for estimate, drawn in ((found.kappa, kappas), (found.accuracy_difference, changes)):
        tolerance = 0.3 * float(np.std(drawn))  # of quantiles of 1,000 draws, more than three sds
        expected = np.quantile(drawn, [0.025, 0.975])
        assert (estimate.low, estimate.high) == pytest.approx(tuple(expected), abs=tolerance)


def test_a_seed_draws_the_samples() -> None:
    tables = [table_of(run) for run in two_runs()]
    one, same, other = (compare_runs(*tables, num_draws=100, seed=seed) for seed in (3, 3, 4))
    assert one == same
    assert one.rules[0].kappa.value == other.rules[0].kappa.value
    assert one.rules[0].kappa.low != other.rules[0].kappa.low


def test_equal_runs_agree_wholly_and_differ_in_nothing() -> None:
    first, _ = two_runs()
    for row in compared(first, first).rules:
        for one in (row.agreement, row.correlation, row.kappa):
            assert (one.value, one.low, one.high) == pytest.approx((1.0, 1.0, 1.0), abs=1e-9)
        for one in (row.entropy_difference, row.accuracy_difference, row.weight_difference):
            assert (one.value, one.low, one.high) == (0.0, 0.0, 0.0)


def test_a_constant_rule_has_no_correlation_and_kappa_only_of_different_levels() -> None:
    half_PR = np.full((NUM_PAIRS, 1), 0.5)
    (same,) = compared(rated_pairs(half_PR, half_PR), rated_pairs(half_PR, half_PR)).rules
    assert (same.correlation.value, same.kappa.value, same.agreement.value) == (None, None, 1.0)
    (other,) = compared(
        rated_pairs(half_PR, half_PR), rated_pairs(half_PR + 0.1, half_PR + 0.1)
    ).rules
    assert other.kappa.value == pytest.approx(0.0)


def test_only_pairs_rules_and_ratings_that_are_in_both_are_compared_and_the_rest_is_said() -> None:
    first, second = two_runs()
    fewer = dataclasses.replace(second.take(np.arange(20)), rule_ids=("rule-0", "rule-1", "else"))
    fewer.chosen_PR[:, 1] = fewer.rejected_PR[:, 1] = np.nan
    found = compared(first, fewer)
    assert [row.rule_id for row in found.rules] == ["rule-0", "rule-1"]
    assert found.num_pairs == 20
    assert found.rules[1].kappa.value is None
    notes = "\n".join(found.notes)
    for part in ("else, rule-2", "130 and 0", "no response rated in both", "20 pairs are few"):
        assert part in notes
    json.dumps(found.as_dict(), allow_nan=False)


def test_nothing_in_common_is_one_line() -> None:
    first, second = two_runs()
    strangers = dataclasses.replace(second, pair_id_P=second.pair_id_P + "x")
    with pytest.raises(InputError, match="no pair in common"):
        compared(first, strangers)
    with pytest.raises(InputError, match="no rule in common"):
        compared(first, dataclasses.replace(second, rule_ids=("a", "b", "c")))


def test_the_order_of_pairs_and_rules_changes_nothing_but_their_order() -> None:
    first, second = two_runs()
    turned = dataclasses.replace(
        second,
        rule_ids=second.rule_ids[::-1],
        chosen_PR=second.chosen_PR[:, ::-1],
        rejected_PR=second.rejected_PR[:, ::-1],
    )
    assert compared(first, turned.take(np.arange(NUM_PAIRS)[::-1])) == compared(first, second)
