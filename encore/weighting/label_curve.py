"""Measure from how many labels on fitted weights beat weights that need none.

Suffixes: P pairs, R rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import Estimate
from encore.analysis.entropy import entropy_weights
from encore.analysis.paired_difference import mean_difference_interval
from encore.analysis.share_intervals import mean_credit_interval
from encore.core.errors import InputError
from encore.warehouse import PairRatings
from encore.warehouse.pair_ratings import GroupedBy
from encore.weighting.composed_ratings import composed_margins, composed_outcomes, pair_credits
from encore.weighting.cross_validation import draw_folds
from encore.weighting.scheme import Evidence
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.schemes.shrunk import fit_shrunk, shrinkage_targets

NUM_LABELS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
#: Draws of the labelled pairs in each fold.
_NUM_DRAWS = 2

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelCurve:
    """Half-credit accuracy of scheme ``shrunk`` on held-out prompts, by number of labels.

    Attributes:
        num_labels: Numbers of labelled pairs, ascending.
        shrunk: Accuracy with as many labels, with a 95 % interval over prompts.
        encore: Accuracy of scheme ``encore`` on the same pairs.
        uniform: Accuracy of uniform weights on the same pairs.
        num_labels_to_beat: Smallest number from which on ``shrunk`` is better than the better one
            of the two, by more than the 95 % interval of the paired difference; None if there is no
            such number.
        num_pairs: Pairs that every rule rated; each is held out once in each draw.
        num_prompts: Number of their prompts; None if prompts are not known.
        grouped_by: The group of pairs that is never both learnt from and tested on.
    """

    num_labels: tuple[int, ...]
    shrunk: tuple[Estimate, ...]
    encore: Estimate
    uniform: Estimate
    num_labels_to_beat: int | None
    num_pairs: int
    num_prompts: int | None
    grouped_by: GroupedBy


def label_curve(evidence: Evidence, options: SchemeOptions) -> LabelCurve:
    """Learn weights from more and more labels, and measure them on held-out prompts.

    Five folds hold out every pair once. From the other folds the labels are drawn at random.

    Args:
        evidence: Evidence of the rules, with its pairs.
        options: Temperature of scheme ``encore``; the seed draws folds and labels.

    Raises:
        InputError: There are too few pairs or prompts to learn from and to hold out.
    """
    pairs = evidence.read_pairs().complete()
    group_P = pairs.group_P
    # Two prompts for the penalty are in the smallest training part.
    if pairs.num_pairs == 0 or len(np.unique(group_P)) < 4:
        raise InputError(
            f"label curve: {len(np.unique(group_P))} prompts with pairs that every rule rated; "
            "expected four or more, to learn from and to hold out: rate more pairs"
        )
    fold_P = draw_folds(group_P, seed=options.seed)
    num_learnt = int((len(fold_P) - np.bincount(fold_P)).min())
    sizes = (*(num for num in NUM_LABELS if num < num_learnt), num_learnt)
    targets = shrinkage_targets(evidence)
    credit_by_size = _held_out_credits(pairs, group_P, fold_P, sizes, targets, seed=options.seed)
    num_rules = len(evidence.rules)
    entropy_R = entropy_weights(evidence.entropy_R, tau=options.tau)
    weight_VR = np.stack([entropy_R, np.full(num_rules, 1 / num_rules)])
    encore, uniform = composed_outcomes(pairs, weight_VR, group_P)
    credit_VP = [*map(pair_credits, composed_margins(pairs, weight_VR))]
    best_P = max(credit_VP, key=np.mean)
    return LabelCurve(
        num_labels=sizes,
        shrunk=tuple(
            mean_credit_interval(credit_P, group_P) for credit_P in credit_by_size.values()
        ),
        encore=encore.half_credit,
        uniform=uniform.half_credit,
        num_labels_to_beat=_num_labels_to_beat(best_P, credit_by_size, group_P),
        num_pairs=pairs.num_pairs,
        num_prompts=pairs.num_prompts,
        grouped_by=pairs.grouped_by,
    )


def _held_out_credits(
    pairs: PairRatings,
    group_P: NDArray[np.intp],
    fold_P: NDArray[np.intp],
    sizes: Sequence[int],
    targets: Mapping[str, _Floats],
    *,
    seed: int,
) -> dict[int, _Floats]:
    """Return the mean credit of every pair, [P], by number of labels of the other folds' pairs."""
    rng = np.random.default_rng(seed)
    credit_by_size = {num: np.zeros(len(fold_P)) for num in sizes}
    margin_PR = pairs.margin_or_zero_PR
    for fold in range(fold_P.max() + 1):
        is_tested_P = fold_P == fold
        tested_pairs = pairs.take(is_tested_P)
        for _ in range(_NUM_DRAWS):
            row_P = rng.permutation(np.flatnonzero(~is_tested_P))
            for num in sizes:
                rows = _with_two_prompts(row_P, group_P, num)
                score_R, _ = fit_shrunk(margin_PR[rows], group_P[rows], targets)
                tested_P = pair_credits(composed_margins(tested_pairs, score_R[None])[0])
                credit_by_size[num][is_tested_P] += tested_P / _NUM_DRAWS
    return credit_by_size


def _num_labels_to_beat(
    best_P: _Floats, credit_by_size: dict[int, _Floats], group_P: NDArray[np.intp]
) -> int | None:
    """Return the number of labels from which on fitted weights are significantly better."""
    num_labels = None
    for num in reversed(credit_by_size):
        low = mean_difference_interval(credit_by_size[num] - best_P, group_N=group_P).low
        if low is None or low <= 0:
            break
        num_labels = num
    return num_labels


def _with_two_prompts(
    row_P: NDArray[np.intp], group_P: NDArray[np.intp], num: int
) -> NDArray[np.intp]:
    """Return the first rows, and as many more as it takes to have pairs of two prompts."""
    is_other_P = group_P[row_P] != group_P[row_P[0]]
    return row_P[: max(num, int(is_other_P.argmax()) + 1)]
