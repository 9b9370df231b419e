"""Measure a scheme on pairs that it did not learn from, by five folds that keep prompts whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.analysis.statistics import Accuracy
from encore.core.errors import InputError
from encore.warehouse.pair_ratings import GroupedBy
from encore.weighting.composed_ratings import composed_margins, outcome_of_margins
from encore.weighting.scheme import Evidence, WeightingScheme
from encore.weighting.scheme_options import SchemeOptions

# Suffixes: P pairs, G groups of pairs.

NUM_FOLDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Accuracy of a scheme's weights on pairs that they were not learnt from.

    Attributes:
        accuracy: Accuracy over all pairs, each under the weights learnt from the other folds.
        accuracy_low: Lower end of the 95 % interval of half-credit accuracy.
        accuracy_high: Upper end of that interval.
        num_pairs: Pairs that every rule rated fully.
        num_folds: `NUM_FOLDS`, or the number of groups if there are fewer.
        num_groups: Distinct prompts or pair ids; each is whole in one fold.
        grouped_by: ``prompt`` if a study has the prompts of all pairs, else ``pair``: then pairs of
            the same prompt may be in different folds.
    """

    accuracy: Accuracy
    accuracy_low: float | None
    accuracy_high: float | None
    num_pairs: int
    num_folds: int
    num_groups: int
    grouped_by: GroupedBy


def held_out(scheme: WeightingScheme, evidence: Evidence, options: SchemeOptions) -> HeldOut | None:
    """Measure a scheme by cross-validation over the pairs that every rule rated fully.

    Args:
        scheme: The scheme, which weighs once for each fold.
        evidence: Evidence whose pairs are split. They are read in sorted order, so the same ratings
            give the same folds however they are stored.
        options: Options of the scheme; the seed draws the folds.

    Returns:
        The accuracy. None if there are fewer than two groups of pairs, or if one fold holds
        everything that the scheme can learn from.
    """
    pairs = evidence.read_pairs().complete()
    group_P = pairs.group_P
    num_groups = int(group_P.max(initial=-1)) + 1
    if num_groups < 2:
        return None
    num_folds = min(NUM_FOLDS, num_groups)
    fold_P = draw_folds(group_P, seed=options.seed)
    composed_P = np.empty(pairs.num_pairs)
    for fold in range(num_folds):
        is_held_out_P = fold_P == fold
        try:
            vector = scheme.weigh(evidence.with_pairs(pairs.take(~is_held_out_P)), options)
        except InputError:  # this fold holds everything that the scheme can learn from
            return None
        weight_VR = np.array([vector.weights])
        [composed_P[is_held_out_P]] = composed_margins(pairs.take(is_held_out_P), weight_VR)
    outcome = outcome_of_margins(composed_P, group_P)
    return HeldOut(
        accuracy=outcome.accuracy,
        accuracy_low=outcome.half_credit.low,
        accuracy_high=outcome.half_credit.high,
        num_pairs=pairs.num_pairs,
        num_folds=num_folds,
        num_groups=num_groups,
        grouped_by=pairs.grouped_by,
    )


def draw_folds(group_P: NDArray[np.intp], *, seed: int) -> NDArray[np.intp]:
    """Return the fold of each pair, shape [P]: folds of whole groups, of the same size up to one.

    There are `NUM_FOLDS` folds, or one for each group if there are fewer groups.
    """
    num_groups = int(group_P.max()) + 1
    fold_G = np.random.default_rng(seed).permutation(num_groups) % min(NUM_FOLDS, num_groups)
    return np.asarray(fold_G[group_P])


def fold_notes(scheme: str, held_out_accuracy: HeldOut | None) -> Iterator[str]:
    """Yield notes on what limits the held-out accuracy of a scheme that learns from labels."""
    if held_out_accuracy is None:
        yield f"{scheme}: too few pairs to hold any out, so it has no held-out accuracy"
        return
    if held_out_accuracy.grouped_by == "pair":
        yield (
            f"{scheme}: the prompts of these pairs are not known, so its held-out accuracy is "
            "grouped by pair_id; pairs of one prompt may be both learnt from and tested on (a "
            "column prompt_id tells them)"
        )
