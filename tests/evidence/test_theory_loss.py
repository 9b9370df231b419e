"""The theorem's loss: its gradient, the proof's bound on D, and descent from zero."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from encore.evidence.theory.descent import descend, step_size
from encore.evidence.theory.loss import loss_gradient, loss_slope, mean_loss, pair_loss

MARGIN = st.floats(-1, 1)
LABEL = st.sampled_from([-1.0, 1.0])
SHAPES = st.tuples(st.integers(1, 8), st.integers(1, 4))


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, margins of pairs under rules, and labels."""
    num_pairs, num_rules = draw(SHAPES)
    return (
        draw(arrays(float, num_rules, elements=st.floats(-5, 5))),
        draw(arrays(float, (num_pairs, num_rules), elements=MARGIN)),
        draw(arrays(float, num_pairs, elements=LABEL)),
    )


# --- the proof's bound ----------------------------------------------------------------------------


@given(LABEL, st.floats(allow_nan=False, allow_infinity=False))
def test_the_slope_is_bounded_by_one_for_every_margin(label: float, margin: float):
    slope = float(loss_slope(label, np.array(margin)))
    assert abs(slope) <= 1
    assert slope * label <= 0  # a larger margin in the label's direction never costs


@given(problems())
def test_the_slope_is_bounded_by_one_for_every_pair(
    problem: tuple[np.ndarray, np.ndarray, np.ndarray],
):
    weight, margin, label = problem
    assert np.abs(loss_slope(label, margin @ weight)).max() <= 1


@given(LABEL, st.floats(-30, 30))
def test_the_slope_is_the_loss_s_derivative(label: float, margin: float):
    h = 1e-5
    above, below = (float(pair_loss(label, np.array(margin + d))) for d in (h, -h))
    assert float(loss_slope(label, np.array(margin))) == pytest.approx(
        (above - below) / (2 * h), abs=1e-9
    )


def test_slope_and_loss_at_three_margins_by_hand():
    # z = +1: -e^-g / (1 + e^-g); at g = ln 3 that is -(1/3) / (4/3) = -1/4, and the loss ln(4/3).
    margin = np.array([0.0, math.log(3), -math.log(3)])
    assert loss_slope(1.0, margin) == pytest.approx([-0.5, -0.25, -0.75])
    assert pair_loss(1.0, margin) == pytest.approx([math.log(2), math.log(4 / 3), math.log(4)])
    assert loss_slope(-1.0, margin) == pytest.approx([0.5, 0.75, 0.25])


def test_huge_margins_neither_overflow_nor_lose_the_loss():
    margin = np.array([1e4, -1e4, 1e308, -1e308])
    assert pair_loss(1.0, margin).tolist() == [0.0, 1e4, 0.0, 1e308]
    assert loss_slope(1.0, margin).tolist() == [0.0, -1.0, 0.0, -1.0]


# --- the gradient ---------------------------------------------------------------------------------


@given(problems())
def test_the_gradient_is_that_of_finite_differences(
    problem: tuple[np.ndarray, np.ndarray, np.ndarray],
):
    weight, margin, label = problem
    found = loss_gradient(weight, margin, label_P=label)
    h = 1e-5
    for place in range(len(weight)):
        step = np.zeros_like(weight)
        step[place] = h
        above = mean_loss(weight + step, margin, label_P=label)
        below = mean_loss(weight - step, margin, label_P=label)
        assert found[place] == pytest.approx((above - below) / (2 * h), abs=1e-8)


@given(problems())
def test_the_gradient_at_zero_is_minus_half_the_mean_margin(
    problem: tuple[np.ndarray, np.ndarray, np.ndarray],
):
    weight, margin, _ = problem
    expected = -margin.mean(axis=0) / 2
    assert loss_gradient(np.zeros_like(weight), margin) == pytest.approx(expected, abs=1e-15)


@given(problems())
def test_swapping_responses_together_with_their_label_changes_nothing(
    problem: tuple[np.ndarray, np.ndarray, np.ndarray],
):
    """With A = chosen every label is +1: the paper's z and our margins say the same."""
    weight, margin, label = problem
    chosen_first = margin * label[:, None]
    assert mean_loss(weight, margin, label_P=label) == pytest.approx(
        mean_loss(weight, chosen_first), abs=1e-12
    )
    assert loss_gradient(weight, margin, label_P=label) == pytest.approx(
        loss_gradient(weight, chosen_first), abs=1e-12
    )


@given(problems(), st.floats(0, 1))
def test_the_loss_is_convex_in_the_weights(
    problem: tuple[np.ndarray, np.ndarray, np.ndarray], share: float
):
    weight, margin, label = problem
    other = weight[::-1]
    between = mean_loss(share * weight + (1 - share) * other, margin, label_P=label)
    ends = (mean_loss(one, margin, label_P=label) for one in (weight, other))
    first, second = ends
    assert between <= share * first + (1 - share) * second + 1e-12


# --- descent --------------------------------------------------------------------------------------


def noisy_margins(num_pairs: int = 2000) -> np.ndarray:
    """Labels from a logistic model, so that an optimum is near (3, 1, 0)."""
    rng = np.random.default_rng(0)
    margin = rng.choice([-0.5, -0.2, 0.0, 0.2, 0.5], size=(num_pairs, 3))
    is_right = rng.random(num_pairs) < 1 / (1 + np.exp(-margin @ np.array([3.0, 1.0, 0.0])))
    return np.where(is_right, 1.0, -1.0)[:, None] * margin


def test_descent_ends_where_another_optimiser_ends():
    margin = noisy_margins()
    found = descend(margin, steps=(1000,))[-1]
    optimum = minimize(
        lambda w: np.log1p(np.exp(-margin @ w)).mean(), np.zeros(3), method="BFGS", tol=1e-9
    )
    assert found.weights == pytest.approx(optimum.x, abs=1e-4)
    assert max(map(abs, found.gradient)) < 1e-6


def test_the_first_step_goes_along_the_mean_margins():
    margin = noisy_margins()
    start, first = descend(margin, steps=(1,))
    assert (start.step, start.weights) == (0, (0.0, 0.0, 0.0))
    assert start.loss == pytest.approx(math.log(2), abs=1e-12)
    assert start.largest_slope == 0.5
    expected = step_size(margin) * margin.mean(axis=0) / 2
    assert first.weights == pytest.approx(expected, abs=1e-12)


@given(arrays(float, SHAPES, elements=MARGIN))
def test_no_step_ever_raises_the_loss(margin: np.ndarray):
    losses = [record.loss for record in descend(margin, steps=range(1, 30))]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(losses))


def test_the_step_size_by_hand():
    # Margins 0.6 and 0.8 of one rule: mean square 0.5, curvature at most 0.5 / 4, step 8.
    assert step_size(np.array([[0.6], [0.8]])) == pytest.approx(8.0)


def test_a_rule_that_never_tells_two_responses_apart_never_moves():
    margin = noisy_margins()
    margin[:, 2] = 0.0
    for record in descend(margin, steps=(1, 100)):
        assert record.weights[2] == 0.0
        assert record.gradient[2] == 0.0


def test_without_any_margin_there_is_nothing_to_learn():
    assert step_size(np.zeros((5, 2))) == 0.0
    assert descend(np.zeros((5, 2)), steps=(3,))[-1].weights == (0.0, 0.0)
