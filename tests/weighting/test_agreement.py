"""Scheme agreement: a rule's weight is the judge's agreement with people beyond chance."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from encore.core.errors import InputError
from encore.data.study import Study
from encore.weighting.cross_validation import held_out
from encore.weighting.scheme import Evidence
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.schemes import load_scheme
from tests.worlds.ratings import evidence_of_entropies, rated_pairs, write_labels

AGREEMENT = load_scheme("agreement")
NUM_PAIRS = 40


def labelled(folder: Path, label_PR: np.ndarray, rating_PR: np.ndarray) -> Evidence:
    """Return evidence of chosen responses with these ratings, and these labels unless NaN."""
    pairs = rated_pairs(rating_PR, np.zeros_like(rating_PR))
    evidence = evidence_of_entropies([0.5] * rating_PR.shape[1], pairs=pairs)
    write_labels(Study(folder), label_PR)
    return dataclasses.replace(evidence, study=Study(folder))


def test_weights_are_kappas_clipped_at_0_and_divided_by_their_sum(tmp_path):
    label_P = np.tile([0.0, 1.0], NUM_PAIRS // 2)
    half_right = np.where(np.arange(NUM_PAIRS) % 8 < 6, label_P, 1 - label_P)
    rating_PR = np.stack([label_P, half_right, 1 - label_P, np.full(NUM_PAIRS, 1.0)], axis=1)
    evidence = labelled(tmp_path, np.repeat(label_P[:, None], 4, axis=1), rating_PR)
    vector = AGREEMENT.weigh(evidence, SchemeOptions())
    # Kappa of the four: 1; three of four right and even margins, so 2 · 3/4 - 1 = 1/2; -1; none.
    assert vector.weights == pytest.approx((2 / 3, 1 / 3, 0, 0))
    assert vector.params == {"scale": pytest.approx(1.5), "num_labels": 160, "num_pairs": NUM_PAIRS}
    assert vector.provenance is not None
    assert vector.provenance.uses_labels
    assert vector.provenance.num_pairs_used == NUM_PAIRS


def test_a_rule_without_labels_weighs_0_and_no_agreement_is_uniform(tmp_path):
    label_P = np.tile([0.0, 1.0], NUM_PAIRS // 2)
    label_PR = np.stack([label_P, np.full(NUM_PAIRS, np.nan)], axis=1)
    evidence = labelled(tmp_path, label_PR, np.stack([label_P, label_P], axis=1))
    assert AGREEMENT.weigh(evidence, SchemeOptions()).weights == (1.0, 0.0)
    evidence = labelled(tmp_path, label_PR, np.stack([1 - label_P, label_P], axis=1))
    vector = AGREEMENT.weigh(evidence, SchemeOptions())
    assert (vector.weights, vector.params["scale"]) == ((0.5, 0.5), 0.0)


def test_labels_of_test_pairs_are_held_out(tmp_path):
    rating_PR = np.tile([0.0, 1.0], NUM_PAIRS // 2)[:, None]
    label_PR = np.full((NUM_PAIRS, 1), np.nan)
    label_PR[:10] = rating_PR[:10]
    evidence = labelled(tmp_path, label_PR, rating_PR)
    accuracy = held_out(AGREEMENT, evidence, SchemeOptions())
    assert accuracy is not None
    assert accuracy.num_pairs == NUM_PAIRS
    unlabelled = evidence.with_pairs(evidence.read_pairs().take(np.arange(10, NUM_PAIRS)))
    with pytest.raises(
        InputError, match=r"no labels of people for these 30 pairs.*`encore annotate export`"
    ):
        AGREEMENT.weigh(unlabelled, SchemeOptions())
    label_PR[1:] = np.nan  # all that can be learnt from is in one fold
    assert held_out(AGREEMENT, labelled(tmp_path, label_PR, rating_PR), SchemeOptions()) is None
