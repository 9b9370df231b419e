"""The Bradley-Terry loss over rule weights, as in the paper's Theorem 1, and descent from zero.

The paper sums over pairs; here it is the mean over pairs, 1/N of the paper's, so that figures of
data sets of different size can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Suffixes: P pairs, R rules. Margins are rating(A) - rating(B). Labels are +1 where response A is
# the better one, -1 where B is; with A = chosen every label is +1.

#: Steps after which the weights are looked at.
STEPS = (1, 10, 100, 1000)

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescentStep:
    """The weights after some steps, and the loss there.

    Attributes:
        step: Steps taken.
        weights: One per rule; they are free, not on the simplex.
        gradient: Of the mean loss, one per rule.
        loss: Mean over pairs; ln 2 with all weights 0.
        largest_slope: Largest |D| of a pair.
    """

    step: int
    weights: tuple[float, ...]
    gradient: tuple[float, ...]
    loss: float
    largest_slope: float


def loss_slope(composed_P: _Floats, *, label_P: _Floats | float = 1.0) -> _Floats:
    """D of the paper's proof: the derivative of a pair's loss log(1 + exp(-z g)) by its margin g.

    It is -z / (1 + exp(z g)). The proof bounds |D| by 1; at a margin of 0 it is 1/2.
    """
    from scipy.special import expit

    return np.asarray(-label_P * expit(-label_P * composed_P), dtype=np.float64)


def mean_loss(weight_R: _Floats, margin_PR: _Floats, *, label_P: _Floats | float = 1.0) -> float:
    """Mean loss of pairs whose composed margin is the weighted sum of the rules' margins."""
    return float(np.logaddexp(0.0, -label_P * (margin_PR @ weight_R)).mean())


def loss_gradient(
    weight_R: _Floats, margin_PR: _Floats, *, label_P: _Floats | float = 1.0
) -> _Floats:
    """Gradient of `mean_loss` by the weights: the mean of D times the rule's margin, shape [R]."""
    slope_P = loss_slope(margin_PR @ weight_R, label_P=label_P)
    return np.asarray(slope_P @ margin_PR / len(margin_PR), dtype=np.float64)


def descend(margin_PR: _Floats, *, steps: Sequence[int] = STEPS) -> tuple[DescentStep, ...]:
    """Gradient descent on the mean Bradley-Terry loss from zero weights.

    Args:
        margin_PR: rating(chosen) - rating(rejected) of each pair and rule, none missing, [P, R].
        steps: After how many steps to look, ascending.

    Returns:
        The start (step 0) and one record for each of ``steps``.
    """
    size = step_size(margin_PR)
    weight_R = np.zeros(margin_PR.shape[1])
    records = []
    for step in range(max(steps) + 1):
        gradient_R = loss_gradient(weight_R, margin_PR)
        if step in (0, *steps):
            records.append(
                DescentStep(
                    step=step,
                    weights=tuple(weight_R.tolist()),
                    gradient=tuple(gradient_R.tolist()),
                    loss=mean_loss(weight_R, margin_PR),
                    largest_slope=float(np.abs(loss_slope(margin_PR @ weight_R)).max()),
                )
            )
        weight_R = weight_R - size * gradient_R
    return tuple(records)


def step_size(margin_PR: _Floats) -> float:
    """The largest step that never overshoots: 1 over the largest curvature of the mean loss.

    The second derivative of the loss by a margin is at most 1/4, so that of the mean loss by the
    weights is at most a quarter of the mean of margin' margin. 0 where all margins are 0.
    """
    gram_RR = margin_PR.T @ margin_PR / len(margin_PR)
    curvature = float(np.linalg.eigvalsh(gram_RR)[-1]) / 4
    return 1 / curvature if curvature > np.finfo(np.float64).tiny else 0.0
