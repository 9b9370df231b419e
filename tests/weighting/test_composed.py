"""Composed ratings: outcomes, ties, intervals; temperatures out of range."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from encore.core.errors import InputError
from encore.weighting import composed_ratings as composed
from encore.weighting.composed_ratings import (
    Outcome,
    composed_outcomes,
    half_credit_interval,
    pair_credits,
)
from encore.weighting.scheme_comparison import sweep_tau
from tests.worlds.ratings import evidence_of_margins


def test_margins_that_cancel_but_for_rounding_are_a_tie():
    margin_PR = np.array([[0.8 - 0.7, 0.3 - 0.4]])
    assert (margin_PR @ [0.5, 0.5])[0] != 0
    [outcome] = composed_outcomes(margin_PR, np.array([[0.5, 0.5]]))
    assert outcome.num_ties == 1
    assert pair_credits(np.array([0.2, 1e-17, 0.0, -0.2])).tolist() == [1.0, 0.5, 0.5, 0.0]


def test_outcomes_do_not_depend_on_the_size_of_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    margin_PR = rng.integers(-5, 6, size=(101, 4)) / 10
    weight_VR = rng.dirichlet(np.ones(4), size=7)
    outcomes = composed_outcomes(margin_PR, weight_VR)
    monkeypatch.setattr(composed, "_MAX_BLOCK_MARGINS", 70)
    assert composed_outcomes(margin_PR, weight_VR) == outcomes


@pytest.mark.parametrize(("wins", "total"), [(0, 7), (7, 7), (61, 100), (500, 1000)])
def test_without_ties_the_interval_is_wilsons(wins, total):
    expected = scipy.stats.binomtest(wins, total).proportion_ci(method="wilson")
    interval = half_credit_interval(wins / total, tie_rate=0.0, num_pairs=total)
    assert interval == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_interval_covers_the_truth_95_times_in_100():
    # Credits 1, 1/2, 0 with probabilities 0.4, 0.35, 0.25: the truth is 0.575. Of 4,000 samples
    # 95 % are covered give or take 4 · sqrt(0.95 · 0.05 / 4000) = 1.4 %.
    counts = np.random.default_rng(0).multinomial(300, [0.4, 0.35, 0.25], size=4000)
    estimates = [
        Outcome(num_wins=wins, num_ties=ties, num_losses=losses).half_credit
        for wins, ties, losses in counts.tolist()
    ]
    coverage = np.mean([estimate.low <= 0.575 <= estimate.high for estimate in estimates])
    assert coverage == pytest.approx(0.95, abs=0.014)


@pytest.mark.parametrize("taus", [[0.0], [2.0, math.nan]])
def test_an_impossible_temperature_is_refused(taus):
    with pytest.raises(InputError, match="tau"):
        sweep_tau(evidence_of_margins([[0.2, -0.2]]), taus=taus)
