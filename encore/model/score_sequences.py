"""Score token sequences in batches, without gradients.

The score of a sequence does not depend on the sequences in the same batch. Batch size, order and
layout change at most the last digits of a float32.

Legend: N sequences, R heads, X columns of the computed values, U units (sequences that are computed
together).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Required, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from encore.model.backbone_options import LayoutName
from encore.model.layouts import Microbatch, TokenIds, cut_rows, fill_bins, lay_out, shared_length
from encore.model.reward_model import MultiHeadRewardModel, WholeClassifier

#: Tokens of one forward pass by type of device. Nothing is kept for a backward pass.
TOKENS_PER_MICROBATCH = {"cuda": 65_536, "cpu": 4_096}

Groups = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComputedBatch:
    """The values of the sequences of one forward pass.

    Attributes:
        indices: Indices of the sequences.
        value_NX: Values of these sequences in the same order, float32.
        num_tokens: Tokens of the sequences, with shared tokens counted for each of them.
        num_computed: Token positions that were computed.
        num_padding: Computed positions that are padding.
    """

    indices: NDArray[np.int64]
    value_NX: NDArray[np.float32]
    num_tokens: int
    num_computed: int
    num_padding: int


class Batching(TypedDict, total=False):
    """Keyword arguments of `score_sequences` that say how sequences are batched."""

    pad_token_id: Required[int]
    tokens_per_microbatch: int | None
    layout: LayoutName
    groups: Groups


def score_sequences(
    model: MultiHeadRewardModel, sequences: Sequence[TokenIds], **batching: Unpack[Batching]
) -> NDArray[np.float32]:
    """Return the centred scores of every sequence under every head.

    Args:
        model: Reward model; it is returned to training or evaluation mode afterwards.
        sequences: Token ids of conversations, none empty, none longer than the model's positions.
        batching: ``pad_token_id``: any valid token; nothing attends to it.
            ``tokens_per_microbatch``: most token positions of a forward pass; a longer sequence is
            computed alone (default: `TOKENS_PER_MICROBATCH` of the model's device). ``layout``: see
            `encore.model.layouts.lay_out`. ``groups``: indices of sequences that may share a
            beginning, each in one group at most; only for ``prefix-shared``.

    Returns:
        score_NR, float32, shape [N, R], in the order of the sequences.

    Raises:
        InputError: A sequence is empty, or the model does not allow the layout.
    """
    score_NR = np.empty((len(sequences), len(model.head_ids)), dtype=np.float32)
    for batch in computed_batches(model, sequences, compute=model, **batching):
        score_NR[batch.indices] = batch.value_NX
    return score_NR


def computed_batches(
    model: MultiHeadRewardModel,
    sequences: Sequence[TokenIds],
    *,
    compute: Callable[[Microbatch], Any],
    pad_token_id: int,
    tokens_per_microbatch: int | None = None,
    layout: LayoutName = "packed",
    groups: Groups = (),
) -> Iterator[ComputedBatch]:
    """Compute a value of every sequence, batch by batch, without dropout and gradients.

    The longest sequences come first, so that too little memory shows at once. Arguments and errors
    are those of `score_sequences`. The model returns to its mode after the last batch.

    Args:
        model: Reward model.
        sequences: Token ids of conversations.
        compute: ``model`` for scores, or ``model.embed`` for the pooled states.
        pad_token_id: Any valid token.
        tokens_per_microbatch: Most token positions of a forward pass.
        layout: Layout of the batches.
        groups: Indices of sequences that may share a beginning.
    """
    if layout == "packed" and isinstance(model, WholeClassifier):
        layout = "sorted"  # it pads its rows in any layout, and padding must be counted
    device = model.device
    device_type = "cuda" if device.type == "cuda" else "cpu"
    budget = tokens_per_microbatch or TOKENS_PER_MICROBATCH[device_type]
    was_training = model.training
    model.eval()
    try:
        for units in _plan_batches(sequences, layout=layout, groups=groups, budget=budget):
            indices = [index for unit in units for index in unit]
            counter = itertools.count()
            microbatch = lay_out(
                [sequences[index] for index in indices],
                layout=layout,
                groups=[[next(counter) for _ in unit] for unit in units],
                pad_token_id=pad_token_id,
                is_causal=model.is_causal,
            )
            # Not around the loop: between two batches the caller's code runs.
            with torch.inference_mode():
                value_NX = compute(microbatch.to(device)).float().cpu().numpy()
            num_tokens, num_computed = microbatch.num_tokens, microbatch.num_computed
            yield ComputedBatch(
                indices=np.array(indices, dtype=np.int64),
                value_NX=value_NX,
                num_tokens=num_tokens,
                num_computed=num_computed,
                num_padding=0 if microbatch.segments else num_computed - num_tokens,
            )
    finally:
        model.train(was_training)


def best_layout(model: MultiHeadRewardModel) -> LayoutName:
    """Return the layout that computes the fewest tokens among those that the model allows."""
    if isinstance(model, WholeClassifier):
        return "sorted"
    return "prefix-shared" if model.is_causal else "packed"


def _plan_batches(
    sequences: Sequence[TokenIds], *, layout: LayoutName, groups: Groups, budget: int
) -> list[list[Sequence[int]]]:
    """Return the units of every batch; the sequences of a unit are computed together."""
    length_N = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
    if layout in ("sorted", "single"):
        rows = cut_rows(range(len(sequences)), length_N, layout, budget)
        return [[(index,) for index in row] for row in rows]
    units: list[Sequence[int]] = list(filter(len, groups)) if layout == "prefix-shared" else []
    grouped = {index for unit in units for index in unit}
    units += [(index,) for index in range(len(sequences)) if index not in grouped]
    # Token positions of a unit in a packed row. `lay_out` refuses empty sequences.
    cost_U = np.array([length_N[list(unit)].sum() for unit in units], dtype=np.int64)
    for unit_index, unit in enumerate(units):
        num_shared = shared_length([sequences[index] for index in unit])
        cost_U[unit_index] -= (len(unit) - 1) * num_shared
    return [[units[index] for index in unit_bin] for unit_bin in fill_bins(cost_U, budget)]
