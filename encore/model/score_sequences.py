"""Scores of token sequences: laid out without padding, computed without gradients, kept in order.

What a sequence scores does not depend on what is computed beside it: batch size, order and layout
change the last digits of a float32 at most.

Legend: N sequences, R heads, X whatever is computed of a sequence.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Required, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from encore.model.backbone_config import LayoutName
from encore.model.layouts import Microbatch, TokenIds, cut_rows, fill_bins, lay_out, shared_length
from encore.model.reward_model import MultiHeadRewardModel, WholeClassifier

#: Tokens of one forward pass by kind of device: nothing is kept for a backward pass.
TOKENS_PER_MICROBATCH = {"cuda": 65_536, "cpu": 4_096}

Groups = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComputedBatch:
    """What one forward pass made of some sequences.

    Attributes:
        indices: Which sequences.
        value_NX: In the same order, float32.
        num_tokens: Their tokens, each sequence as if it stood alone.
        num_computed: Token positions that were computed.
        num_padding: Those of them that hold no token of a sequence.
    """

    indices: NDArray[np.int64]
    value_NX: NDArray[np.float32]
    num_tokens: int
    num_computed: int
    num_padding: int


class Batching(TypedDict, total=False):
    """How sequences are computed: keywords of `score_sequences`."""

    pad_token_id: Required[int]
    tokens_per_microbatch: int | None
    layout: LayoutName
    groups: Groups


def score_sequences(
    model: MultiHeadRewardModel, sequences: Sequence[TokenIds], **how: Unpack[Batching]
) -> NDArray[np.float32]:
    """The raw, centred scores of every sequence under every head, in the order given.

    Args:
        model: Left in the mode in which it came.
        sequences: Token ids of conversations, none empty, none longer than the model's positions.
        how: ``pad_token_id``: any valid token, nothing attends to it. ``tokens_per_microbatch``:
            the most token positions to compute at once; a longer sequence goes alone (default:
            `TOKENS_PER_MICROBATCH` of the model's device). ``layout``: see
            `encore.model.layouts.lay_out`. ``groups``: for ``prefix-shared``: which sequences may
            share a beginning, as indices; each in one group at most.

    Returns:
        score_NR, float32, shape [N, R].

    Raises:
        InputError: an empty sequence; a layout that the model does not allow.
    """
    score_NR = np.empty((len(sequences), len(model.head_ids)), dtype=np.float32)
    for batch in computed_batches(model, sequences, compute=model, **how):
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
    """Something of every sequence, batch by batch: dropout off, no gradients.

    The longest come first: memory fails early or never.

    Arguments and errors are those of `score_sequences`; ``compute`` is ``model`` itself for scores,
    ``model.embed`` for what the heads read. The model is left in the mode in which it came once the
    last batch was taken.
    """
    if layout == "packed" and isinstance(model, WholeClassifier):
        layout = "sorted"  # it pads whatever the layout: what is packed would be counted wrong
    device = model.device
    kind = "cuda" if device.type == "cuda" else "cpu"
    budget = tokens_per_microbatch or TOKENS_PER_MICROBATCH[kind]
    was_training = model.training
    model.eval()
    try:
        for units in _plan(sequences, layout=layout, groups=groups, budget=budget):
            indices = [index for unit in units for index in unit]
            place = itertools.count()
            microbatch = lay_out(
                [sequences[index] for index in indices],
                layout=layout,
                groups=[[next(place) for _ in unit] for unit in units],
                pad_token_id=pad_token_id,
                is_causal=model.is_causal,
            )
            # Not around the loop: what runs between two batches is the caller's.
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
    """The layout that computes least: a pair's common beginning once, where the model allows it."""
    if isinstance(model, WholeClassifier):
        return "sorted"
    return "prefix-shared" if model.is_causal else "packed"


def _plan(
    sequences: Sequence[TokenIds], *, layout: LayoutName, groups: Groups, budget: int
) -> list[list[Sequence[int]]]:
    """The units of every batch; the sequences of a unit stay together."""
    length_N = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
    if layout in ("sorted", "single"):
        rows = cut_rows(range(len(sequences)), length_N, layout, budget)
        return [[(index,) for index in row] for row in rows]
    units: list[Sequence[int]] = list(filter(len, groups)) if layout == "prefix-shared" else []
    grouped = {index for unit in units for index in unit}
    units += [(index,) for index in range(len(sequences)) if index not in grouped]
    # Token positions that a unit takes of a packed row; `lay_out` refuses empty sequences.
    cost_U = np.array([length_N[list(unit)].sum() for unit in units], dtype=np.int64)
    for place, unit in enumerate(units):
        cost_U[place] -= (len(unit) - 1) * shared_length([sequences[index] for index in unit])
    return [[units[place] for place in places] for places in fill_bins(cost_U, budget)]
