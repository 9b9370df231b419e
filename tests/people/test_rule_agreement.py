"""The agreement of a weak real judge with real labels is that of other definitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from encore.people.rule_agreement import label_agreement
from tests.reference import reference_alpha

pytest.importorskip("sentence_transformers")


@pytest.mark.services  # loads an embedding model
def test_agreement_with_real_labels_is_that_of_other_definitions(shared_data: Path) -> None:
    from examples.rbr_probe import rate_half

    gold = shared_data / "rbr-gold-dev.jsonl.gz"
    table = rate_half([gold], limit=60)
    report = label_agreement(table)
    assert len(report.rules) == 23
    assert table.num_rows == 23 * 30
    num_kappas = 0
    for rule in report.rules:
        rows = [row for row in table.to_pylist() if row["rule_id"] == rule.rule_id]
        people = np.array([row["label"] for row in rows]).astype(int)
        judge = np.array([row["rating"] >= 0.5 for row in rows]).astype(int)
        if len({*people}) == len({*judge}) == 2:
            num_kappas += 1
            assert rule.kappa.value == pytest.approx(cohen_kappa_score(people, judge))
            assert rule.kappa.low <= rule.kappa.value <= rule.kappa.high
        else:
            assert rule.kappa.value is None
        if rule.alpha.value is not None:
            alpha = reference_alpha(np.array([people, judge], dtype=float))
            assert rule.alpha.value == pytest.approx(alpha)
    assert num_kappas >= 5
    assert report.entropy_with["agreement"].value is not None
