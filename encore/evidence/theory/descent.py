"""Learn rule weights by gradient descent from zero, the setting of the paper's Theorem 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.evidence.theory.loss import loss_gradient, loss_slope, mean_loss

# Suffixes: P pairs, R rules.

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


def descend(margin_PR: _Floats, *, steps: Sequence[int] = STEPS) -> tuple[DescentStep, ...]:
    """Gradient descent on the mean Bradley–Terry loss from zero weights.

    Args:
        margin_PR: rating(chosen) - rating(rejected) of each pair and rule, none missing, [P, R].
        steps: After how many steps to look, ascending.

    Returns:
        The start (step 0) and one record for each of ``steps``.
    """
    size = step_size(margin_PR)
    weight_R = np.zeros(margin_PR.shape[1])
    records = [_record(0, weight_R, margin_PR)]
    for step in range(1, max(steps) + 1):
        weight_R = weight_R - size * loss_gradient(weight_R, margin_PR)
        if step in steps:
            records.append(_record(step, weight_R, margin_PR))
    return tuple(records)


def step_size(margin_PR: _Floats) -> float:
    """The largest step that never overshoots: 1 over the largest curvature of the mean loss.

    The second derivative of the loss by a margin is at most 1/4, so that of the mean loss by the
    weights is at most a quarter of the mean of margin' margin. 0 where all margins are 0.
    """
    gram_RR = margin_PR.T @ margin_PR / len(margin_PR)
    curvature = float(np.linalg.eigvalsh(gram_RR)[-1]) / 4
    return 1 / curvature if curvature > np.finfo(np.float64).tiny else 0.0


def _record(step: int, weight_R: _Floats, margin_PR: _Floats) -> DescentStep:
    return DescentStep(
        step=step,
        weights=tuple(weight_R.tolist()),
        gradient=tuple(loss_gradient(weight_R, margin_PR).tolist()),
        loss=mean_loss(weight_R, margin_PR),
        largest_slope=float(np.abs(loss_slope(1.0, margin_PR @ weight_R)).max()),
    )
