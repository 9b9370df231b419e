"""All schemes on the same pairs: what each composes, what it has seen, what chance reaches."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from encore.weighting.scheme_comparison import SchemeComparison, compare_schemes
from encore.weighting.schemes import SCHEMES_OF_RATINGS
from encore.weighting.schemes.random import random_weights
from encore.weighting.schemes.random_k import random_k_weights
from encore.weighting.weights_config import SchemeOptions
from tests.weighting.evidence_for_tests import rule_names, table_of

NUM_RULES = 6
NAMES = rule_names(NUM_RULES)


def ratings(*, num_pairs: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Ratings on eleven levels; the higher a rule's number, the less it follows the preference."""
    rng = np.random.default_rng(0)
    noise_R = np.linspace(0.1, 0.5, NUM_RULES)
    chosen_PR = 0.6 + noise_R * rng.normal(size=(num_pairs, NUM_RULES))
    rejected_PR = 0.4 + noise_R * rng.normal(size=(num_pairs, NUM_RULES))
    return np.round(chosen_PR.clip(0, 1), 1), np.round(rejected_PR.clip(0, 1), 1)


def compared(chosen_PR: np.ndarray, rejected_PR: np.ndarray, **options: Any) -> SchemeComparison:
    table = table_of(chosen_PR, rejected_PR, rule_ids=NAMES)
    return compare_schemes(table, **options)


def row(comparison: SchemeComparison, scheme: str):
    return next(row for row in comparison.rows if row.vector.scheme == scheme)


def half_of(margin_PR: np.ndarray, weight_R: np.ndarray) -> float:
    return float((np.sign(np.round(margin_PR @ weight_R, 12)).mean() + 1) / 2)


def test_draws_are_the_schemes_at_one_seed_after_another() -> None:
    chosen_PR, rejected_PR = ratings(num_pairs=50)
    found = compared(chosen_PR, rejected_PR, options=SchemeOptions(seed=7, k=2))
    vectors = {
        "random": [random_weights(NAMES, seed=seed) for seed in range(7, 1007)],
        "random-k": [random_k_weights(NAMES, k=2, seed=seed) for seed in range(7, 1007)],
        "single": list(np.eye(NUM_RULES)),
    }
    for draws in found.draws:
        halves = [half_of(chosen_PR - rejected_PR, one) for one in vectors[draws.scheme]]
        assert draws.num_draws == len(halves)
        expected = (np.mean(halves), *np.quantile(halves, [0.025, 0.975]))
        assert (draws.half_mean, draws.half_low, draws.half_high) == pytest.approx(expected)
        if draws.scheme == "random":
            # A draw below counts one, an equal one half.
            uniform = row(found, "uniform")
            beaten = np.mean([(np.sign(uniform.accuracy.half - half) + 1) / 2 for half in halves])
            assert uniform.beats_random == pytest.approx(beaten)


def test_a_rule_missing_for_half_of_the_pairs_leaves_the_other_half() -> None:
    chosen_PR, rejected_PR = ratings()
    rejected_PR[:150, 2] = np.nan
    found, other = compared(chosen_PR, rejected_PR), compared(chosen_PR[150:], rejected_PR[150:])
    assert (found.num_pairs, found.num_pairs_total) == (150, 300)
    assert (
        "accuracies are over the 150 of 300 pairs whose two responses every rule rated; the least "
        "complete is rule-02, with 150"
    ) in found.notes
    # Margins of incomplete pairs count for their spread.
    sd_R = np.nanstd(chosen_PR - rejected_PR, axis=0, ddof=1)
    assert found.margin_sds == pytest.approx(sd_R.tolist())
    for name in ("uniform", "random", "bradley-terry"):  # their weights look at complete pairs only
        assert row(found, name).vector.weights == row(other, name).vector.weights
        assert row(found, name).accuracy == row(other, name).accuracy


def test_without_a_complete_pair_weights_stand_and_bradley_terry_is_left_out() -> None:
    chosen_PR, rejected_PR = ratings(num_pairs=20)
    found = compared(chosen_PR, np.full_like(rejected_PR, np.nan))
    assert [row.vector.scheme for row in found.rows] == [
        name for name in SCHEMES_OF_RATINGS if name != "bradley-terry"
    ]
    assert any(note.startswith("left out: scheme bradley-terry: none") for note in found.notes)
    assert found.num_pairs == found.draws[0].num_draws == 0
    for one in found.rows:
        assert one.accuracy.half is one.accuracy_low is one.beats_random is None
    json.dumps(found.as_dict(), allow_nan=False)
