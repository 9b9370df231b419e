"""ENCORE over its temperature: from the rule of lowest entropy to uniform."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encore.errors import InputError
from encore.weighting.encore import entropy_weights
from encore.weighting.sweep import DEFAULT_TAUS, sweep, tau_sweep
from tests.weighting.evidence_for_tests import (
    evidence_of_entropies,
    evidence_of_margins,
    pairs_of_margins,
    rule_names,
    table_of,
)

# Rule 0 (the lowest entropy) is right in 3 of 4 pairs; with equal weights both are right in 1
# and tie in 1.
MARGINS = [[0.2, -0.2], [0.4, 0.1], [0.1, -0.3], [-0.2, -0.1]]


def test_weights_at_each_temperature_are_encore_s() -> None:
    found = sweep(evidence_of_margins(MARGINS), taus=[0.5, 2.0])
    assert found.taus == (0.5, 2.0)
    for tau, weights in zip(found.taus, found.weights_TR, strict=True):
        # Entropies 0.1 and 0.2: masses 1 and exp(-0.1 / tau).
        mass = math.exp(-0.1 / tau)
        assert weights == pytest.approx([1 / (1 + mass), mass / (1 + mass)], abs=1e-15)


def test_the_ends_are_the_lowest_entropy_and_uniform() -> None:
    found = sweep(evidence_of_margins(MARGINS), taus=[1e-4, 1e6])
    # Rule 0 alone wins 3 of 4. Uniform: 0.0 is a tie, 0.25 a win, -0.1 and -0.15 losses: 3/8.
    assert found.lowest_entropy_accuracy.half == 0.75
    assert found.uniform_accuracy.half == 0.375
    assert found.accuracies[0] == found.lowest_entropy_accuracy
    # At 1e6 the weights differ from uniform by some 1e-8: enough to decide the tie for rule 0.
    assert found.accuracies[1].half == 0.5


@given(
    st.lists(st.integers(0, 300).map(lambda hundredths: hundredths / 100), min_size=1, max_size=8)
)
def test_a_small_and_a_large_temperature_reach_the_limits(entropies: list[float]) -> None:
    rng = np.random.default_rng(len(entropies))
    margin_PR = rng.normal(size=(40, len(entropies)))
    evidence = evidence_of_entropies(entropies, pairs=pairs_of_margins(margin_PR))
    found = sweep(evidence, taus=[5e-324, 1e12])
    assert found.accuracies == (found.lowest_entropy_accuracy, found.uniform_accuracy)


def test_rules_of_equal_lowest_entropy_share_the_limit() -> None:
    pairs = pairs_of_margins([[0.2, -0.2, 0.9], [0.4, 0.1, 0.9]])
    found = sweep(evidence_of_entropies([0.5, 0.5, 1.0], pairs=pairs), taus=[2.0])
    assert found.lowest_entropy_accuracy.half == 0.75  # one tie, one win
    assert entropy_weights(np.array([0.5, 0.5, 1.0]), tau=5e-324).tolist() == [0.5, 0.5, 0.0]


def test_by_default_the_sweep_holds_the_paper_s_temperature() -> None:
    rng = np.random.default_rng(0)
    chosen_PR, rejected_PR = rng.integers(0, 11, size=(2, 30, 3)) / 10
    found = tau_sweep(table_of(chosen_PR, rejected_PR, rule_ids=rule_names(3)))
    assert found.taus == DEFAULT_TAUS
    assert 2.0 in found.taus
    assert len(found.accuracies) == len(found.weights_TR) == len(DEFAULT_TAUS)
    spread = [max(weights) - min(weights) for weights in found.weights_TR]
    assert spread == sorted(spread, reverse=True)
    json.dumps(found.as_dict(), allow_nan=False)


@pytest.mark.parametrize("taus", [[], [0.0], [2.0, math.nan]])
def test_no_temperature_or_an_impossible_one_is_refused(taus: list[float]) -> None:
    with pytest.raises(InputError, match="tau"):
        sweep(evidence_of_margins(MARGINS), taus=taus)
