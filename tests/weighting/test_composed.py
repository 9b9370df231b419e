"""Composed ratings: outcomes, ties, intervals; temperatures out of range."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats

from encore.analysis.entropy import entropy_weights
from encore.core.errors import InputError
from encore.weighting import composed_ratings as composed
from encore.weighting.composed_ratings import (
    Outcome,
    composed_margins,
    composed_outcomes,
    half_credit_interval,
    pair_credits,
)
from encore.weighting.scheme_comparison import compare_schemes, sweep_tau
from tests.worlds.ratings import evidence_of_margins, pairs_of_margins, rated_pairs, table_of_pairs

NAN = math.nan


def test_margins_that_cancel_but_for_rounding_are_a_tie():
    margin_PR = np.array([[0.8 - 0.7, 0.3 - 0.4]])
    assert (margin_PR @ [0.5, 0.5])[0] != 0
    [outcome] = composed_outcomes(pairs_of_margins(margin_PR), np.array([[0.5, 0.5]]))
    assert outcome.num_ties == 1
    assert pair_credits(np.array([0.2, 1e-17, 0.0, -0.2])).tolist() == [1.0, 0.5, 0.5, 0.0]


def test_outcomes_do_not_depend_on_the_size_of_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    margin_PR = rng.integers(-5, 6, size=(101, 4)) / 10
    weight_VR = rng.dirichlet(np.ones(4), size=7)
    pairs = pairs_of_margins(margin_PR)
    outcomes = composed_outcomes(pairs, weight_VR)
    monkeypatch.setattr(composed, "_MAX_BLOCK_MARGINS", 70)
    assert composed_outcomes(pairs, weight_VR) == outcomes


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


def test_a_response_is_composed_of_the_rules_that_apply_to_it():
    # Rule 1 does not apply to the first pair's chosen response, neither rule to the second's.
    pairs = dataclasses.replace(
        rated_pairs([[0.6, NAN], [NAN, NAN], [0.4, 0.8]], [[0.7, 0.2], [0.9, 0.9], [0.1, NAN]]),
        not_applicable_2PR=np.array(
            [[[0, 1], [1, 1], [0, 0]], [[0, 0], [0, 0], [0, 1]]], dtype=bool
        ),
    )
    weight_VR = np.array([[0.75, 0.25], [0.0, 1.0]])
    # Of pair 0 the chosen response has 0.6 whatever the weights, the rejected 0.575 or 0.2.
    # A rule of no weight composes nothing: then the pairs without a composed rating are ties.
    expected_VP = [[0.6 - 0.575, 0.0, 0.5 - 0.1], [0.0, 0.0, 0.0]]
    assert composed_margins(pairs, weight_VR) == pytest.approx(np.array(expected_VP))
    assert pairs.complete().num_pairs == 2  # no rule applies to a response of the second pair
    [outcome, _] = composed_outcomes(pairs.complete(), weight_VR)
    assert (outcome.num_wins, outcome.num_ties, outcome.num_losses) == (2, 0, 0)


def test_a_failed_rating_is_no_rule_that_does_not_apply():
    pairs = rated_pairs([[0.6, NAN], [0.6, NAN]], [[0.7, 0.2], [0.1, 0.2]])
    not_applicable_2PR = np.zeros((2, 2, 2), dtype=bool)
    not_applicable_2PR[0, 1, 1] = True
    pairs = dataclasses.replace(pairs, not_applicable_2PR=not_applicable_2PR)
    assert pairs.complete().pair_id_P.tolist() == pairs.pair_id_P[1:].tolist()
    assert pairs.is_failed_PR.tolist() == [[False, True], [False, False]]
    assert pairs.complete().margin_or_zero_PR.tolist() == [[0.5, 0.0]]


def test_weights_do_not_change_with_what_does_not_apply():
    """A rule's entropy is of its ratings, so its weight is; composing divides by the sum."""
    rng = np.random.default_rng(0)
    rating_2PR = rng.integers(0, 3, (2, 200, 2)) / 2
    not_applicable_2PR = np.zeros(rating_2PR.shape, dtype=bool)
    not_applicable_2PR[:, :150, 1] = True
    table = table_of_pairs(rated_pairs(*np.where(not_applicable_2PR, np.nan, rating_2PR)))
    reasons = pa.array(
        np.where(not_applicable_2PR.transpose(1, 0, 2).ravel(), "does_not_apply", "")
    )
    comparison = compare_schemes(table.append_column("null_reason", reasons))
    assert comparison.num_pairs == 200
    assert "does not apply to; a response is composed" in comparison.notes[0]
    encore, *_ = comparison.rows
    entropy_R = [
        scipy.stats.entropy(np.unique(ratings, return_counts=True)[1])
        for ratings in (rating_2PR[:, :, 0], rating_2PR[:, 150:, 1])
    ]
    assert encore.vector.weights == pytest.approx(entropy_weights(np.array(entropy_R)))
    # Where rule 1 does not apply, rule 0 alone decides.
    weight_R = np.array(encore.vector.weights)
    margin_PR = rating_2PR[0] - rating_2PR[1]
    margin_P = np.r_[margin_PR[:150, 0], margin_PR[150:] @ weight_R]
    half = ((margin_P > 1e-12).sum() + (np.abs(margin_P) <= 1e-12).sum() / 2) / 200
    assert encore.accuracy.half == pytest.approx(half)
    assert comparison.rows[-1].accuracy.half is not None  # those that learn from labels, too
