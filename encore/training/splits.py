"""Which pairs a model learns from and which it is measured on, and the centres of its targets.

Suffixes: P pairs, G groups, R heads.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from encore.data.records import PreferencePair
from encore.errors import InputError

if TYPE_CHECKING:
    from encore.training.examples import TrainingExamples

_Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """Rows of examples, ascending; no prompt group is in both.

    Attributes:
        train_rows: The pairs to learn from.
        evaluation_rows: The pairs to measure on.
    """

    train_rows: _Rows
    evaluation_rows: _Rows


def group_of(pair: PreferencePair) -> int:
    """A content hash of the prompt's first human turn, as a signed 64-bit number.

    Conversations that begin alike continue alike: pairs of one group are never parted between
    training and evaluation.
    """
    first = next((turn.content for turn in pair.prompt if turn.role == "user"), "")
    digest = hashlib.sha256(first.strip().encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def place_of(group: int, *, seed: int) -> float:
    """Where a group falls in [0, 1), evenly spread: it depends on its text and the seed alone."""
    digest = hashlib.sha256(f"{seed}:{group}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2.0**48  # 48 bits: exact in a float, never 1


def split(examples: TrainingExamples, *, evaluation_share: float, seed: int) -> Split:
    """A share of the prompt groups, drawn by content hash, for evaluation.

    The draw depends on a group's text and the seed alone: more data moves no pair from one side to
    the other, and a larger share only adds to the evaluation. Where a share above 0 draws no group,
    as it may in a handful of pairs, the group nearest to being drawn is held out.

    Args:
        examples: The pairs.
        evaluation_share: From 0 (none) to below 1.
        seed: Of the draw.

    Raises:
        InputError: A share out of range; no pair left to learn from.
    """
    if not 0 <= evaluation_share < 1:
        raise InputError(
            f"evaluation_share {evaluation_share}: expected a share from 0 to below 1, such as 0.05"
        )
    group_G, index_P = np.unique(examples.group_P, return_inverse=True)
    place_P = np.array([place_of(int(group), seed=seed) for group in group_G])[index_P]
    is_evaluated_P = place_P < evaluation_share
    if evaluation_share > 0 and len(group_G) > 1 and not is_evaluated_P.any():
        is_evaluated_P = place_P == place_P.min()
    if is_evaluated_P.all():
        raise InputError(
            f"evaluation_share {evaluation_share}: all {examples.num_pairs} pairs fall into the "
            "evaluation and none is left to learn from; give a smaller share or more pairs"
        )
    return Split(
        train_rows=np.flatnonzero(~is_evaluated_P), evaluation_rows=np.flatnonzero(is_evaluated_P)
    )


def centre(examples: TrainingExamples, *, train_rows: _Rows) -> TrainingExamples:
    """The same examples with each head's mean over the training pairs taken off its targets.

    Bias-free heads learn centred targets, so that composing them folds exactly into one head.
    Evaluation pairs are centred by the same means and have no part in them. Chosen and rejected
    responses count together. Objective bradley-terry has no targets, so nothing changes.

    Args:
        examples: The pairs; centring again changes nothing but rounding.
        train_rows: Those to learn from.

    Raises:
        InputError: A head without a rating in any training pair.
    """
    if examples.target_chosen_PR.shape[1] == 0:
        return examples
    sides = [side[train_rows] for side in (examples.target_chosen_PR, examples.target_rejected_PR)]
    num_R = sum((~np.isnan(side)).sum(axis=0) for side in sides)
    for head_id, num_ratings in zip(examples.head_ids, num_R, strict=True):
        if num_ratings == 0:
            raise InputError(
                f"rule {head_id}: it has no rating in any of the {len(train_rows)} training pairs, "
                "so its head has nothing to learn; leave the rule out of the ratings, rate more "
                "pairs or take another seed"
            )
    sum_R = sum(np.nansum(side, axis=0, dtype=np.float64) for side in sides)
    return move_centres(examples, sum_R / num_R)


def move_centres(examples: TrainingExamples, offset_R: NDArray[np.float64]) -> TrainingExamples:
    """The same ratings, counted from centres that lie ``offset_R`` higher, shape [R]."""
    return dataclasses.replace(
        examples,
        target_chosen_PR=(examples.target_chosen_PR - offset_R).astype(np.float32),
        target_rejected_PR=(examples.target_rejected_PR - offset_R).astype(np.float32),
        mean_R=examples.mean_R + offset_R,
    )
