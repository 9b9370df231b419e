"""All schemes compared on the same pairs, with the accuracy that random weights reach."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from encore.weighting.scheme_comparison import SchemeComparison, compare_schemes
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.schemes import SCHEMES
from encore.weighting.schemes.random import random_weights
from encore.weighting.schemes.random_k import random_k_weights
from tests.worlds.ratings import rule_names, table_of

NUM_RULES = 6
NAMES = rule_names(NUM_RULES)


def ratings(*, num_pairs: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Return ratings on eleven levels; rules of higher number follow the preference less."""
    rng = np.random.default_rng(0)
    noise_R = np.linspace(0.1, 0.5, NUM_RULES)
    chosen_PR = 0.6 + noise_R * rng.normal(size=(num_pairs, NUM_RULES))
    rejected_PR = 0.4 + noise_R * rng.normal(size=(num_pairs, NUM_RULES))
    return np.round(chosen_PR.clip(0, 1), 1), np.round(rejected_PR.clip(0, 1), 1)


def compared(chosen_PR: np.ndarray, rejected_PR: np.ndarray, **options: Any) -> SchemeComparison:
    table = table_of(chosen_PR, rejected_PR, rule_ids=NAMES)
    return compare_schemes(table, **options)


def row_of(comparison: SchemeComparison, scheme: str):
    return next(row for row in comparison.rows if row.vector.scheme == scheme)


def half_of(margin_PR: np.ndarray, weight_R: np.ndarray) -> float:
    return float((np.sign(np.round(margin_PR @ weight_R, 12)).mean() + 1) / 2)


@pytest.mark.services
def test_draws_are_the_schemes_weights_at_consecutive_seeds():
    chosen_PR, rejected_PR = ratings(num_pairs=50)
    comparison = compared(chosen_PR, rejected_PR, options=SchemeOptions(seed=7, k=2))
    vectors = {
        "random": [random_weights(NAMES, seed=seed) for seed in range(7, 1007)],
        "random-k": [random_k_weights(NAMES, k=2, seed=seed) for seed in range(7, 1007)],
        "single": list(np.eye(NUM_RULES)),
    }
    for draws in comparison.draws:
        halves = [half_of(chosen_PR - rejected_PR, weight_R) for weight_R in vectors[draws.scheme]]
        assert draws.num_draws == len(halves)
        expected = (np.mean(halves), *np.quantile(halves, [0.025, 0.975]))
        assert (draws.half_mean, draws.half_low, draws.half_high) == pytest.approx(expected)
        if draws.scheme == "random":
            # A draw below counts one, an equal one half.
            uniform = row_of(comparison, "uniform")
            beaten = np.mean([(np.sign(uniform.accuracy.half - half) + 1) / 2 for half in halves])
            assert uniform.beats_random == pytest.approx(beaten)


@pytest.mark.services
def test_a_rule_missing_for_half_of_the_pairs_leaves_the_other_half():
    chosen_PR, rejected_PR = ratings()
    rejected_PR[:150, 2] = np.nan
    comparison = compared(chosen_PR, rejected_PR)
    of_complete = compared(chosen_PR[150:], rejected_PR[150:])
    assert (comparison.num_pairs, comparison.num_pairs_total) == (150, 300)
    assert (
        "accuracies are over the 150 of 300 pairs whose two responses every rule rated; the least "
        "complete is rule-02, with 150"
    ) in comparison.notes
    # Margins of incomplete pairs count for their spread.
    sd_R = np.nanstd(chosen_PR - rejected_PR, axis=0, ddof=1)
    assert comparison.margin_sds == pytest.approx(sd_R.tolist())
    for name in ("uniform", "random", "bradley-terry"):  # their weights look at complete pairs only
        assert row_of(comparison, name).vector.weights == row_of(of_complete, name).vector.weights
        assert row_of(comparison, name).accuracy == row_of(of_complete, name).accuracy


def test_without_a_complete_pair_only_schemes_of_labels_are_left_out():
    chosen_PR, rejected_PR = ratings(num_pairs=20)
    comparison = compared(chosen_PR, np.full_like(rejected_PR, np.nan))
    assert [row.vector.scheme for row in comparison.rows] == [
        name for name in SCHEMES if name not in ("bradley-terry", "shrunk", "agreement")
    ]
    for name in ("bradley-terry", "shrunk"):
        problem = f"left out: scheme {name}: none of 20 pairs has both responses rated"
        assert any(note.startswith(problem) for note in comparison.notes)
    assert comparison.num_pairs == comparison.draws[0].num_draws == 0
    for row in comparison.rows:
        assert row.accuracy.half is row.accuracy_low is row.beats_random is None
    json.dumps(comparison.as_dict(), allow_nan=False)
