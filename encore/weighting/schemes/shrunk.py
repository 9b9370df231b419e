"""Shrunk: weights learnt from few labels, penalised for their distance from a target.

The target is uniform weights, or those of scheme ``consensus``. The labels are fitted by the
logistic regression of scheme ``bradley-terry``, or rule by rule. Target, fit and penalty are chosen
by one cross-validation over prompts. Few labels say little, so the penalty is large and the weights
stay near the target; many labels lead to the weights of ``bradley-terry``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from encore.analysis.answer_options import DEFAULT_TAU, DOUBLE_CORRELATION
from encore.analysis.consensus import consensus_weights
from encore.core.errors import InputError
from encore.weighting.cross_validation import draw_folds
from encore.weighting.scheme import Evidence, SchemeResult, WeightingScheme
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.schemes.bradley_terry import fit_scores, labelled_pairs, weights_of_scores

# Suffixes: P pairs, R rules, S penalties, C candidates, G prompts.

#: Candidate penalties, the largest first, for margins whose mean square is 1. The largest keeps
#: weights within about a hundredth of the target.
PENALTIES: tuple[float, ...] = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
#: Losses that differ by less are equal; of equal candidates the first is taken.
_SAME_LOSS = 1e-9
#: About as many pairs, of whole prompts, make the choice. Labels beyond them are fitted with a
#: penalty that is smaller by as much as they are more, and jointly: a fit rule by rule is for few
#: labels, and never comes to the weights of ``bradley-terry``.
MAX_CHOOSING_PAIRS = 5_000

FitName = Literal["joint", "per rule"]
FITS: tuple[FitName, ...] = ("joint", "per rule")

_Floats = NDArray[np.float64]


class ShrunkChoice(NamedTuple):
    """Choice of a cross-validation: the target's name, the kind of fit, and the penalty."""

    target: str
    fit: FitName
    penalty: float


def fit_shrunk(
    margin_PR: _Floats, group_P: NDArray[np.intp], targets: Mapping[str, _Floats] | None = None
) -> tuple[_Floats, ShrunkChoice]:
    """Return scores that are shrunk towards a target, shape [R], and what was chosen for it.

    The choice has the least loss in a cross-validation with five folds of whole prompts. Of equal
    choices the first target, the joint fit and the largest penalty win. Whatever the rules' scale,
    margins are divided by one number first, so that their mean square is 1. The folds depend on the
    groups alone.

    Args:
        margin_PR: Margins of the pairs with labels, the chosen response's first, shape [P, R].
        group_P: Prompt of each pair, from 0, shape [P]. A prompt is never divided between folds.
        targets: Weights to shrink to, by name, each of shape [R]; None is ``uniform`` alone.

    Raises:
        InputError: There are fewer than two prompts, so no pair can be held out.
    """
    num_groups = len(np.unique(group_P))
    if num_groups < 2:
        raise InputError(
            f"scheme shrunk: labels of {num_groups} prompt; expected two or more to choose the "
            "penalty by: label pairs of other prompts, or take scheme uniform"
        )
    if targets is None:
        targets = uniform_target(margin_PR.shape[1])
    spread = float(np.sqrt(np.square(margin_PR).mean())) or 1.0
    scaled_PR = margin_PR / spread
    choosing_P = _choosing_pairs(group_P)
    fits = FITS if choosing_P.all() else FITS[:1]
    choice = _chosen(scaled_PR[choosing_P], group_P[choosing_P], targets, fits)
    # A penalty is worth as many labels whatever their number, and the loss is a mean over them.
    choice = choice._replace(penalty=choice.penalty * float(choosing_P.mean()))
    [score_R] = _path(scaled_PR, targets[choice.target], choice.fit, (choice.penalty,))
    return score_R / spread, choice


def uniform_target(num_rules: int) -> dict[str, _Floats]:
    """Return uniform weights under their name."""
    return {"uniform": np.full(num_rules, 1 / num_rules)}


def shrinkage_targets(evidence: Evidence) -> dict[str, _Floats]:
    """Return the weights that scheme ``shrunk`` may shrink to: uniform, and those of consensus.

    Consensus has its default temperature. Its correlations are of all pairs, also of those that a
    cross-validation holds out: no label enters them.
    """
    consensus_R = consensus_weights(
        evidence.correlation_RR, tau=DEFAULT_TAU, threshold=DOUBLE_CORRELATION
    )
    return {**uniform_target(len(consensus_R)), "consensus": consensus_R}


def _choosing_pairs(group_P: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return True for pairs of randomly drawn prompts, about `MAX_CHOOSING_PAIRS`, shape [P]."""
    if len(group_P) <= MAX_CHOOSING_PAIRS:
        return np.ones(len(group_P), dtype=bool)
    names_G, group_P = np.unique(group_P, return_inverse=True)
    num_kept = max(len(names_G) * MAX_CHOOSING_PAIRS // len(group_P), 2)
    rank_G = np.random.default_rng(0).permutation(len(names_G))
    return np.asarray(rank_G[group_P] < num_kept)


def _chosen(
    margin_PR: _Floats,
    group_P: NDArray[np.intp],
    targets: Mapping[str, _Floats],
    fits: tuple[FitName, ...],
) -> ShrunkChoice:
    """Return the choice of the least loss on held-out prompts."""
    paths = [(target, fit) for target in targets for fit in fits]
    fold_P = draw_folds(np.unique(group_P, return_inverse=True)[1], seed=0)
    loss_C = np.zeros(len(paths) * len(PENALTIES))
    for fold in range(fold_P.max() + 1):
        learnt_PR, held_out_PR = margin_PR[fold_P != fold], margin_PR[fold_P == fold]
        score_CR = [
            score_R
            for target, fit in paths
            for score_R in _path(learnt_PR, targets[target], fit, PENALTIES)
        ]
        loss_C += np.logaddexp(0.0, -held_out_PR @ np.transpose(score_CR)).sum(axis=0)
    best = int(np.argmax(loss_C <= loss_C.min() + _SAME_LOSS * len(margin_PR)))
    target, fit = paths[best // len(PENALTIES)]
    return ShrunkChoice(target, fit, PENALTIES[best % len(PENALTIES)])


def _path(
    margin_PR: _Floats, target_R: _Floats, fit: FitName, penalties: tuple[float, ...]
) -> list[_Floats]:
    """Return the scores at each penalty, [R] each; one fit begins where the one before ended.

    Scores fitted rule by rule get the common scale that is best for their sum.
    """
    scores: list[_Floats] = []
    start_R = None
    for penalty in penalties:
        start_R = fit_scores(
            margin_PR, penalty=penalty, target_R=target_R, is_joint=fit == "joint", start_R=start_R
        )
        scale = 1.0 if fit == "joint" else fit_scores((margin_PR @ start_R)[:, None])[0]
        scores.append(start_R * scale)
    return scores


def _compute(evidence: Evidence, options: SchemeOptions) -> SchemeResult:
    pairs, numbers = labelled_pairs("shrunk", evidence, options)
    targets = shrinkage_targets(evidence)
    score_R, choice = fit_shrunk(pairs.margin_or_zero_PR, pairs.group_P, targets)
    weight_R, scale = weights_of_scores(score_R)
    if not scale:  # no rule agrees with people
        weight_R = targets[choice.target]
    return weight_R, {"scale": scale, **choice._asdict(), **numbers}


SCHEME = WeightingScheme(name="shrunk", options=("labels",), uses_labels=True, compute=_compute)
