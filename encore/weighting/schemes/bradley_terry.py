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

_Floats = NDArray[np.float64]


def fit_scores(margin_PR: _Floats, *, penalty: float = 0.0) -> _Floats:
    """Return the non-negative scores s that minimise the Bradley-Terry loss, shape [R].

    The loss is the mean of log(1 + exp(-margin s)) (the paper's Bradley-Terry objective, without
    an intercept) plus `RIDGE` / 2 times |s|², plus penalty / 2 times |s - mean of s|². Weights w on
    the simplex times a free scale b >= 0 are the same as s = b w >= 0, and in s the problem is
    convex: it has one optimum.

    Args:
        margin_PR: rating(chosen) - rating(rejected), shape [P, R], none missing.
        penalty: Factor of the squared distance from uniform weights at the best scale; 0 or above.

    Raises:
        EncoreError: The optimizer finds no optimum.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    def loss(score_R: _Floats) -> tuple[float, _Floats]:
        composed_P = margin_PR @ score_R
        away_R = score_R - score_R.mean()
        gradient_R = RIDGE * score_R + penalty * away_R
        gradient_R -= margin_PR.T @ expit(-composed_P) / len(margin_PR)
        value = np.logaddexp(0.0, -composed_P).mean() + RIDGE / 2 * score_R @ score_R
        return float(value + penalty / 2 * away_R @ away_R), gradient_R

    num_rules = margin_PR.shape[1]
    optimum = minimize(
        loss,
        np.zeros(num_rules),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, None)] * num_rules,
        options={"maxiter": 20_000, "maxfun": 100_000, "ftol": 1e-16, "gtol": 1e-10},
    )
    # The search ends where a step changes the loss by rounding alone: a loss of 1e-16 hides a slope
    # of 1e-8 times the root of the curvature, which is below 1e-6 unless a penalty adds to it.
    largest_slope = 1e-6 * (1 + penalty)
    if not optimum.success and np.abs(optimum.jac[optimum.x > 0]).max(initial=0) > largest_slope:
        raise EncoreError(
            f"weights from labels: no optimum ({optimum.message}); the margins range from "
            f"{margin_PR.min():g} to {margin_PR.max():g}: check the ratings' scale"
        )
    return np.asarray(optimum.x, dtype=np.float64)


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
