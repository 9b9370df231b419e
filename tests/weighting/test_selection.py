"""Rule selection: the k rules of lowest entropy, averaged, against the paper's baselines."""

from __future__ import annotations

import numpy as np
import pytest

from encore.errors import InputError
from encore.weighting.comparison import compare_schemes
from encore.weighting.scheme import SchemeOptions
from encore.weighting.selection import select, select_rules
from tests.weighting.evidence_for_tests import (
    evidence_of_entropies,
    pairs_of_margins,
    rule_names,
    table_of,
)

MARGINS = [[0.4, -0.1, -0.9], [-0.1, 0.4, -0.9], [0.2, 0.2, -0.9], [-0.2, 0.1, -0.9]]


def test_the_rules_of_lowest_entropy_are_averaged() -> None:
    evidence = evidence_of_entropies([0.7, 0.2, 1.5], pairs=pairs_of_margins(MARGINS))
    found = select(evidence, options=SchemeOptions(k=2), num_random=50)
    assert found.rule_ids == ("rule-01", "rule-00")
    assert found.vector.weights == (0.5, 0.5, 0.0)
    # Their mean: 0.15, 0.15, 0.2, -0.05: three of four. The third rule outweighs both everywhere.
    assert found.selected.accuracy.half == 0.75
    assert found.weighted.accuracy.half == 0.0
    # Alone they are right in 2, 3 and 0 of 4.
    assert found.single.half_accuracies == (0.5, 0.75, 0.0)
    # Two rules by lot: with the third none is right, else three are.
    assert set(found.random_k.half_accuracies) == {0.0, 0.75}


def test_all_rules_are_ranked_by_entropy() -> None:
    evidence = evidence_of_entropies([0.7, 0.2, 1.5], pairs=pairs_of_margins(MARGINS))
    found = select(evidence, options=SchemeOptions(k=1), num_random=2)
    assert [rule.entropy_nats for rule in found.ranked] == [0.2, 0.7, 1.5]


def test_selection_agrees_with_the_comparison_of_schemes() -> None:
    rng = np.random.default_rng(3)
    chosen_PR, rejected_PR = rng.integers(0, 11, size=(2, 60, 7)) / 10
    table = table_of(chosen_PR, rejected_PR, rule_ids=rule_names(7))
    found = select_rules(table, num_random=20)
    rows = {row.vector.scheme: row for row in compare_schemes(table, num_random=20).rows}
    assert len(found.rule_ids) == 5
    assert found.vector == rows["top-k"].vector
    assert found.selected.accuracy == rows["top-k"].accuracy
    assert found.weighted.accuracy == rows["encore"].accuracy
    assert found.random_k.half_accuracies[0] == rows["random-k"].accuracy.half


def test_no_rule_cannot_be_selected() -> None:
    with pytest.raises(InputError, match="--k 0"):
        select_rules(table_of(np.ones((2, 1)), np.zeros((2, 1)), rule_ids=["a"]), k=0)
