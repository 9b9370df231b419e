"""Shrunk: weights learnt from few labels, penalised for their distance from uniform weights.

It is the logistic regression of scheme ``bradley-terry`` with a penalty that a cross-validation
over prompts chooses. Few labels say little, so the penalty is large and the weights stay near
uniform; many labels lead to the weights of ``bradley-terry``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from encore.core.errors import InputError
from encore.weighting.cross_validation import draw_folds
from encore.weighting.scheme import Evidence, SchemeResult, WeightingScheme
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.schemes.bradley_terry import fit_scores, labelled_pairs, weights_of_scores

# Suffixes: P pairs, R rules, S penalties.

#: Candidate penalties, the largest first, for margins whose mean square is 1. The largest keeps
#: weights within about a hundredth of uniform.
PENALTIES: tuple[float, ...] = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
#: Losses that differ by less are equal; of equal penalties the largest is taken.
_SAME_LOSS = 1e-9

_Floats = NDArray[np.float64]


def fit_shrunk(margin_PR: _Floats, group_P: NDArray[np.intp]) -> tuple[_Floats, float]:
    """Return scores that are shrunk towards uniform, shape [R], and their penalty.

    The penalty has the least loss in a cross-validation with five folds of whole prompts.
    Whatever the rules' scale, margins are divided by one number first, so that their mean square is
    1. The folds depend on the groups alone.

    Args:
        margin_PR: Margins of the pairs with labels, the chosen response's first, shape [P, R].
        group_P: Prompt of each pair, from 0, shape [P]. A prompt is never divided between folds.

    Raises:
        InputError: There are fewer than two prompts, so no pair can be held out.
    """
    num_groups = len(np.unique(group_P))
    if num_groups < 2:
        raise InputError(
            f"scheme shrunk: labels of {num_groups} prompt; expected two or more to choose the "
            "penalty by: label pairs of other prompts, or take scheme uniform"
        )
    spread = float(np.sqrt(np.square(margin_PR).mean())) or 1.0
    scaled_PR = margin_PR / spread
    fold_P = draw_folds(np.unique(group_P, return_inverse=True)[1], seed=0)
    loss_S = np.zeros(len(PENALTIES))
    for fold in range(fold_P.max() + 1):
        learnt_PR, held_out_PR = scaled_PR[fold_P != fold], scaled_PR[fold_P == fold]
        for index, penalty in enumerate(PENALTIES):
            score_R = fit_scores(learnt_PR, penalty=penalty)
            loss_S[index] += np.logaddexp(0.0, -held_out_PR @ score_R).sum()
    chosen = int(np.argmax(loss_S <= loss_S.min() + _SAME_LOSS * len(margin_PR)))
    return fit_scores(scaled_PR, penalty=PENALTIES[chosen]) / spread, PENALTIES[chosen]


def _compute(evidence: Evidence, options: SchemeOptions) -> SchemeResult:
    pairs, numbers = labelled_pairs("shrunk", evidence, options)
    score_R, penalty = fit_shrunk(pairs.margin_or_zero_PR, pairs.group_P)
    weight_R, scale = weights_of_scores(score_R)
    return weight_R, {"scale": scale, "penalty": penalty, **numbers}


SCHEME = WeightingScheme(name="shrunk", options=("labels",), uses_labels=True, compute=_compute)
