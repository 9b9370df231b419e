"""Bradley-Terry finds the one optimum of any input, over the pairs that every rule rated."""

from __future__ import annotations

import numpy as np
import pytest

from encore.core.errors import EncoreError
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.schemes import load_scheme
from encore.weighting.schemes.bradley_terry import fit_scores
from encore.weighting.weight_vector import WeightVector
from tests.worlds.ratings import evidence_of_margins

# Suffixes: P pairs, R rules.

#: The documented penalty. It is not imported: a changed one changes the weights of every study.
RIDGE = 1e-6


def weigh(margin_PR: np.ndarray) -> WeightVector:
    return load_scheme("bradley-terry").weigh(evidence_of_margins(margin_PR), SchemeOptions())


# --- results derived by hand ----------------------------------------------------------------------


def test_the_scale_is_0_without_agreement_and_finite_with_perfect_rules():
    vector = weigh(np.array([[-0.5, -0.1]] * 60 + [[0.5, 0.1]] * 40))
    assert (vector.params["scale"], vector.weights) == (0.0, (0.5, 0.5))
    vector = weigh(np.array([[0.3, 0.1]] * 10))
    assert 0 < vector.params["scale"] < 1e3
    assert vector.weights[0] > vector.weights[1]


def test_the_penalty_alone_bounds_the_scale_of_a_rule_that_is_always_right():
    # One rule, every margin 1. The slope of log(1 + exp(-s)) + ridge / 2 · s² is 0 where
    # ridge · s = 1 / (1 + exp(s)), so s (1 + exp(s)) = 1 / ridge = 1,000,000. For s = 11.38335:
    # exp(11.38335) = 87,846.8, and 11.38335 · 87,847.8 = 1,000,002.
    [score] = fit_scores(np.ones((10, 1)))
    assert score == pytest.approx(11.38335, abs=1e-3)
    assert weigh(np.ones((10, 1))).params["ridge"] == 1e-6


# --- the optimum ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_at_the_optimum_is_0_or_positive_at_a_bound(seed):
    rng = np.random.default_rng(seed)
    # Rules in common blocks, some of them against the labels: bounds are active, curvature uneven.
    margin_PR = 0.2 * (0.9 * rng.normal(size=(400, 1)) + 0.4 * rng.normal(size=(400, 8)))
    margin_PR += rng.uniform(-0.05, 0.08, size=8)
    score_R = fit_scores(margin_PR)
    gradient_R = -margin_PR.T @ (1 / (1 + np.exp(margin_PR @ score_R))) / 400 + RIDGE * score_R
    # It is 0, or positive where a score is at its bound 0.
    assert np.abs(np.where(score_R > 0, gradient_R, np.minimum(gradient_R, 0))).max() < 1e-7
    assert (score_R >= 0).all()


# --- missing ratings ------------------------------------------------------------------------------


def test_copies_whose_margins_are_too_large_for_the_ridge_are_one_error_with_their_range():
    margin_PR = 1e7 * np.array([[1.0, 1.0], [1.0, 1.0], [-1.0, -1.0]])
    with pytest.raises(EncoreError, match=r"from -1e\+07 to 1e\+07: check the ratings' scale"):
        fit_scores(margin_PR)


def test_pairs_that_a_rule_did_not_rate_are_left_out_and_counted():
    margin_PR = np.random.default_rng(2).uniform(-0.5, 0.7, size=(300, 3))
    holes_PR = margin_PR.copy()
    holes_PR[:100, 1] = np.nan
    vector = weigh(holes_PR)
    assert vector.weights == weigh(margin_PR[100:]).weights
    assert vector.params["num_pairs"] == 200
    assert vector.params["num_pairs_left_out"] == 100
    assert vector.provenance is not None
    assert (vector.provenance.num_pairs, vector.provenance.num_pairs_used) == (300, 200)
