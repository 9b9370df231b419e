"""Bradley-Terry: weights learnt from people's preferences by logistic regression on margins.

It learns from the pairs that every rule rated fully.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from encore.core.errors import EncoreError, InputError
from encore.warehouse import PairRatings
from encore.weighting.scheme import Evidence, SchemeResult, WeightingScheme
from encore.weighting.scheme_options import SchemeOptions

# Suffixes: P pairs, R rules.

#: Half of it times the squared length of the scores is added to the mean loss. It moves weights by
#: less than 1e-4 and gives every input one optimum: rules that are copies of each other share their
#: weight, a constant rule gets none, and labels that are predicted perfectly give a finite scale.
RIDGE = 1e-6
#: A Newton step that promises to decrease the loss by less is the last one: what is left after it
#: is about the square.
_SMALLEST_DECREASE = 1e-14
_ROUNDING = 1e-13
_MAX_STEPS = 200

_Floats = NDArray[np.float64]


def fit_scores(
    margin_PR: _Floats,
    *,
    penalty: float = 0.0,
    target_R: _Floats | None = None,
    is_joint: bool = True,
    start_R: _Floats | None = None,
) -> _Floats:
    """Return the non-negative scores s that minimise the Bradley-Terry loss, shape [R].

    The loss is the mean of log(1 + exp(-margin s)) (the paper's Bradley-Terry objective, without
    an intercept) plus `RIDGE` / 2 times |s|², plus penalty / 2 times |s - b target|² at its best
    b. Weights w on the simplex times a free scale b >= 0 are the same as s = b w >= 0, and in s the
    problem is convex: it has one optimum. Newton's steps find it, each the exact optimum of the
    quadratic model under the bounds.

    Args:
        margin_PR: rating(chosen) - rating(rejected), shape [P, R], none missing.
        penalty: Factor of the squared distance from the target's weights; 0 or above.
        target_R: Weights that the penalty draws to, shape [R]; None is uniform.
        is_joint: True for one regression on all margins. False sums the losses of each rule by
            itself, log(1 + exp(-margin of the rule times its score)), so that few labels need not
            tell correlated rules apart; the scores' common scale is then too large.
        start_R: Scores near the optimum, to begin at; None begins at 0.

    Raises:
        EncoreError: The steps find no optimum.
    """
    # LAPACK itself: with few rules, the checks of `scipy.linalg` take longer than the solving.
    from scipy.linalg.lapack import dpotrf, dtrtrs
    from scipy.optimize import nnls

    num_rules = margin_PR.shape[1]
    direction_R = np.ones(num_rules) if target_R is None else target_R
    direction_R = direction_R / np.linalg.norm(direction_R)
    away_RR = np.eye(num_rules) - np.outer(direction_R, direction_R)
    added_RR = RIDGE * np.eye(num_rules) + penalty * away_RR

    def away_from_target(score_R: _Floats) -> _Floats:
        # The score without its part along the target: the difference at the best scale.
        return np.asarray(score_R - (score_R @ direction_R) * direction_R)

    def loss(score_R: _Floats) -> float:
        composed = margin_PR @ score_R if is_joint else margin_PR * score_R
        value = np.logaddexp(0.0, -composed).sum() / len(margin_PR)
        away_R = away_from_target(score_R)
        return float(value + RIDGE / 2 * score_R @ score_R + penalty / 2 * away_R @ away_R)

    score_R = np.zeros(num_rules) if start_R is None else start_R
    value = loss(score_R)
    for _ in range(_MAX_STEPS):
        slope_R, curvature_RR = _derivatives(margin_PR, score_R, is_joint=is_joint)
        slope_R += RIDGE * score_R + penalty * away_from_target(score_R)
        # With curvature U'U, the quadratic model is |U s' - (U s - U'⁻¹ slope)|² / 2.
        root_RR, is_singular = dpotrf(curvature_RR + added_RR)
        if is_singular:  # margins so large that the ridge is rounded away
            break
        goal_R = root_RR @ score_R - dtrtrs(root_RR, slope_R, trans=1)[0]
        step_R = nnls(root_RR, goal_R)[0] - score_R
        decrease = -float(slope_R @ step_R)
        if decrease < _SMALLEST_DECREASE:
            return np.asarray(score_R + step_R, dtype=np.float64)
        share, last_value = 1.0, value
        # Near the optimum a sum over many pairs rounds by more than the loss decreases.
        while (value := loss(score_R + share * step_R)) > (
            last_value - 1e-4 * share * decrease + _ROUNDING
        ):
            share /= 2
        score_R = score_R + share * step_R
    raise EncoreError(
        f"weights from labels: no optimum within {_MAX_STEPS} steps; the margins range from "
        f"{margin_PR.min():g} to {margin_PR.max():g}: check the ratings' scale"
    )


def _derivatives(
    margin_PR: _Floats, score_R: _Floats, *, is_joint: bool
) -> tuple[_Floats, _Floats]:
    """Return slope, shape [R], and curvature, [R, R], of the mean loss of `fit_scores`."""
    from scipy.special import expit

    if is_joint:
        wrong_P = expit(-margin_PR @ score_R)
        slope_R = -(wrong_P @ margin_PR)
        curvature_RR = margin_PR.T @ (margin_PR * (wrong_P * (1 - wrong_P))[:, None])
    else:
        wrong_PR = expit(-margin_PR * score_R)
        slope_R = -(wrong_PR * margin_PR).sum(axis=0)
        curvature_RR = np.diag((margin_PR**2 * wrong_PR * (1 - wrong_PR)).sum(axis=0))
    return slope_R / len(margin_PR), curvature_RR / len(margin_PR)


def labelled_pairs(
    scheme: str, evidence: Evidence, options: SchemeOptions
) -> tuple[PairRatings, dict[str, float | str]]:
    """Return the pairs that a scheme learns from, and their numbers as parameters to report.

    They are the pairs whose two responses every rule rated, or does not apply to: there its margin
    counts as 0. With ``options.labels`` they are the
    first of these by id. Ids that ENCORE makes are hashes of the content, so that is a fair sample.

    Raises:
        InputError: No pair is rated under every rule.
    """
    # A missing margin is not a margin of 0.
    pairs = evidence.read_pairs().complete()
    if pairs.num_pairs == 0:
        scarcest = min(evidence.rules, key=lambda rule: rule.num_pairs)
        raise InputError(
            f"scheme {scheme}: none of {evidence.num_pairs} pairs has both responses rated "
            f"under every rule, so there is no label to learn from (rule {scarcest.rule_id} has "
            f"{scarcest.num_pairs}); rate the missing ones or leave such rules out"
        )
    num_left_out = evidence.num_pairs - pairs.num_pairs
    if options.labels is not None:
        order_P = np.lexsort((pairs.source_P, pairs.pair_id_P))
        pairs = pairs.take(np.sort(order_P[: options.labels]))
    return pairs, {"num_pairs": pairs.num_pairs, "num_pairs_left_out": num_left_out}


def weights_of_scores(score_R: _Floats) -> tuple[_Floats, float]:
    """Return the scores divided by their sum, and the sum.

    If no rule agrees with people, the best scale is 0, at which all weights are equally good.
    """
    scale = float(score_R.sum())
    return score_R / scale if scale > 0 else np.full(len(score_R), 1 / len(score_R)), scale


def _compute(evidence: Evidence, options: SchemeOptions) -> SchemeResult:
    pairs, numbers = labelled_pairs("bradley-terry", evidence, options)
    weight_R, scale = weights_of_scores(fit_scores(pairs.margin_or_zero_PR))
    return weight_R, {"scale": scale, "ridge": RIDGE, **numbers}


SCHEME = WeightingScheme(
    name="bradley-terry", options=("labels",), uses_labels=True, compute=_compute
)
