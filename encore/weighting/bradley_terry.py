"""Bradley–Terry: weights learnt from people's preferences by logistic regression on margins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from encore.errors import EncoreError, InputError
from encore.weighting.composed import complete_pairs
from encore.weighting.evidence import Evidence
from encore.weighting.scheme import SchemeOptions, WeightingScheme
from encore.weighting.vector import WeightVector

# Suffixes: P pairs, R rules.

#: Half this times the squared length of the scores is added to the mean loss. It moves weights by
#: less than 1e-4 and gives every input one optimum: rules that are copies of each other share their
#: weight, a constant rule gets none, and labels that are predicted perfectly leave a finite scale.
RIDGE = 1e-6
_MAX_STEPS = 200
_MAX_HALVINGS = 40
#: Newton's steps shrink quadratically: after one of this relative size there is nothing to gain.
_SMALL_STEP = 1e-9
#: Differences of losses below this are rounding.
_ROUNDING = 1e-14

_Floats = NDArray[np.float64]


def fit_scores(margin_PR: _Floats, *, ridge: float = RIDGE) -> _Floats:
    """Non-negative scores s that minimise the Bradley–Terry loss; their shape is [R].

    The loss is the mean of log(1 + exp(-margin s)) (the paper's Bradley–Terry objective, without
    an intercept) plus ``ridge`` / 2 times |s|². Weights w on the simplex times a free scale b >= 0
    are the same as s = b w >= 0, and in s the problem is convex: Newton's method, each step with
    the bounds in it, finds the one optimum, the same for every start and order of rules.

    Args:
        margin_PR: rating(chosen) - rating(rejected), shape [P, R], none missing.
        ridge: See `RIDGE`.

    Raises:
        EncoreError: No optimum within the allowed steps.
    """
    score_R = np.zeros(margin_PR.shape[1])
    for _ in range(_MAX_STEPS):
        gradient_R, hessian_RR = _derivatives(margin_PR, score_R, ridge=ridge)
        target_R = _lowest_point(hessian_RR, hessian_RR @ score_R - gradient_R)
        step_R = target_R - score_R
        precision = _SMALL_STEP * max(1.0, target_R.max())
        if np.abs(step_R).max() <= precision:
            return np.where(target_R > precision, target_R, 0.0)  # less is rounding
        length = _step_length(margin_PR, score_R, step_R, float(gradient_R @ step_R), ridge=ridge)
        # Both ends are non-negative, and so is what lies between; rounding must not undo it.
        score_R = np.maximum(score_R + length * step_R, 0.0)
    raise EncoreError(
        f"scheme bradley-terry: no optimum after {_MAX_STEPS} steps; the margins range from "
        f"{margin_PR.min():g} to {margin_PR.max():g}: check the ratings' scale"
    )


def _loss(margin_PR: _Floats, score_R: _Floats, *, ridge: float) -> float:
    losses_P = np.logaddexp(0.0, -(margin_PR @ score_R))
    return float(losses_P.mean() + ridge / 2 * score_R @ score_R)


def _derivatives(margin_PR: _Floats, score_R: _Floats, *, ridge: float) -> tuple[_Floats, _Floats]:
    """Gradient [R] and Hessian [R, R] of the loss."""
    from scipy.special import expit

    num_pairs, num_rules = margin_PR.shape
    miss_P = expit(-(margin_PR @ score_R))
    gradient_R = ridge * score_R - margin_PR.T @ miss_P / num_pairs
    curvature_P = miss_P * (1 - miss_P) / num_pairs
    hessian_RR = (margin_PR.T * curvature_P) @ margin_PR + ridge * np.eye(num_rules)
    return gradient_R, hessian_RR


def _lowest_point(hessian_RR: _Floats, slope_R: _Floats) -> _Floats:
    """Where x'Hx / 2 - slope'x is lowest over x >= 0.

    With H = L L' it is a least-squares problem, |L'x - L⁻¹ slope|².
    """
    from scipy.linalg import solve_triangular
    from scipy.optimize import nnls

    root_RR = np.linalg.cholesky(hessian_RR)
    target_R = solve_triangular(root_RR, slope_R, lower=True)
    found_R, _ = nnls(root_RR.T, target_R, maxiter=30 * len(slope_R))
    return np.asarray(found_R, dtype=np.float64)


def _step_length(
    margin_PR: _Floats, score_R: _Floats, step_R: _Floats, slope: float, *, ridge: float
) -> float:
    """The largest of 1, 1/2, 1/4 … that lowers the loss by a fair part of what its slope says."""
    loss = _loss(margin_PR, score_R, ridge=ridge)
    length = 1.0
    for _ in range(_MAX_HALVINGS):
        new_loss = _loss(margin_PR, score_R + length * step_R, ridge=ridge)
        if new_loss <= loss + 1e-4 * length * slope + _ROUNDING:
            break
        length /= 2
    return length


def _weigh(evidence: Evidence, options: SchemeOptions) -> WeightVector:  # noqa: ARG001 - every scheme is called with both
    # A pair enters if every rule rated both of its responses: a missing margin is no margin of 0.
    pairs = complete_pairs(evidence.read_pairs())
    if pairs.num_pairs == 0:
        least = min(evidence.rules, key=lambda rule: rule.num_pairs)
        raise InputError(
            f"scheme bradley-terry: none of {evidence.num_pairs} pairs has both responses rated "
            f"under every rule, so there is no label to learn from (rule {least.rule_id} has "
            f"{least.num_pairs}); rate the missing ones or leave such rules out"
        )
    score_R = fit_scores(pairs.margin_PR)
    scale = float(score_R.sum())
    # No rule agrees with people: the best scale is 0, at which all weights are equally good.
    weight_R = score_R / scale if scale > 0 else np.full(len(score_R), 1 / len(score_R))
    return evidence.vector(
        SCHEME,
        weight_R,
        params={
            "scale": scale,
            "ridge": RIDGE,
            "num_pairs": pairs.num_pairs,
            "num_pairs_left_out": evidence.num_pairs - pairs.num_pairs,
        },
        num_pairs_used=pairs.num_pairs,
    )


SCHEME = WeightingScheme(
    name="bradley-terry",
    summary="logistic regression of people's preferences on margins, over the pairs that every "
    "rule rated fully",
    uses_labels=True,
    uses_benchmark=False,
    options=(),
    weigh=_weigh,
)
