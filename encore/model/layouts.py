"""Lay out sequences of unequal length as one batch: packed, prefix-shared, sorted or single.

Legend: N sequences, B rows, L tokens of a row (B x L are computed).

A packed row holds one sequence after the other without padding. It consists of *segments*: the
tokens of a segment see one another and, in a prefix-shared row, also the beginning that their
sequence shares with others. Positions restart with every sequence, so scores do not depend on the
layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from encore.core.errors import InputError
from encore.model.backbone_options import LayoutName

#: Rows are computed together only while padding is less than this share of their positions.
MAX_PADDING_SHARE = 0.02

TokenIds = NDArray[np.int32]
_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Tokens ``[start, stop)`` of a packed row.

    They attend to one another and to the context: an earlier segment with the beginning that the
    sequences of a group share. ``context`` is None if nothing is shared.
    """

    start: int
    stop: int
    context: Segment | None = None

    @property
    def num_queries(self) -> int:
        """Return the number of tokens of the segment, without its context."""
        return self.stop - self.start

    @property
    def num_keys(self) -> int:
        """Return the number of tokens of the segment and its context."""
        return self.num_queries + (self.context.num_queries if self.context else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """The input of one forward pass.

    Attributes:
        token_ids_BL: Token ids; a packed layout has one row.
        position_ids_BL: Position of each token in its sequence.
        segments: Segments of a packed row, in row order; None for padded rows.
        attention_mask_BL: True for real tokens, False for padding. None if no padding must be
            hidden: only encoders need the mask.
        first_N: Flat index into [B*L] of each sequence's first token that it does not share.
        last_N: Flat index into [B*L] of each sequence's last token.
        num_tokens: Tokens of all sequences, with shared tokens counted for each of them.
    """

    token_ids_BL: Any
    position_ids_BL: Any
    segments: tuple[Segment, ...] | None
    attention_mask_BL: Any
    first_N: Any
    last_N: Any
    num_tokens: int

    @property
    def num_computed(self) -> int:
        """Return the number of token positions that the forward pass computes: B*L."""
        return int(self.token_ids_BL.numel())

    def to(self, device: str | torch.device) -> Microbatch:
        """Return this microbatch on another device."""
        tensors = {
            field.name: value.to(device, non_blocking=True)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), torch.Tensor)
        }
        return replace(self, **tensors)


def lay_out(
    sequences: Sequence[TokenIds],
    *,
    layout: LayoutName,
    groups: Sequence[Sequence[int]] = (),
    pad_token_id: int,
    is_causal: bool,
) -> Microbatch:
    """Return a microbatch of the sequences. Its indices and scores are in their order.

    Args:
        sequences: Token ids of each sequence, none empty.
        layout: ``packed``: one row without padding. ``prefix-shared``: packed, and the common
            beginning of a group is computed once. ``sorted``: right-padded rows (callers choose
            sequences of similar length). ``single``: one row with one sequence.
        groups: Indices of sequences that may share a beginning, e.g. the two of a pair; only for
            ``prefix-shared``. A sequence in no group shares nothing.
        pad_token_id: Id of the token that fills padded rows.
        is_causal: True if a token sees only earlier tokens. Then right padding needs no mask, and
            sequences may share a beginning.

    Raises:
        InputError: There is no sequence or an empty one, ``single`` gets several sequences, or
            ``prefix-shared`` gets an encoder.
    """
    if layout == "prefix-shared" and not is_causal:
        raise InputError(
            "layout 'prefix-shared': this trunk is bidirectional, so a shared beginning would see "
            "one response or the other; expected a causal trunk: use 'packed'"
        )
    shortest = min(map(len, sequences), default=0)
    if not shortest or (layout == "single" and len(sequences) != 1):
        raise InputError(
            f"layout {layout!r}: {len(sequences)} sequences, the shortest of {shortest} tokens; "
            "expected at least one (single: one per microbatch), none empty"
        )
    if layout in ("sorted", "single"):
        return _padded(sequences, pad_token_id, is_causal=is_causal)
    return _packed(sequences, groups if layout == "prefix-shared" else ())


def shared_length(sequences: Sequence[TokenIds]) -> int:
    """Return the number of tokens that all sequences begin with.

    It is less than the length of the shortest sequence: heads read a sequence's last token, so
    each sequence keeps its own. It is 0 for one sequence.
    """
    shortest = min(map(len, sequences)) - 1
    if len(sequences) < 2 or shortest < 1:
        return 0
    first = sequences[0][:shortest]
    is_same = np.ones(shortest, dtype=np.bool_)
    for sequence in sequences[1:]:
        is_same &= first == sequence[:shortest]
    return shortest if is_same.all() else int(is_same.argmin())


def _padded(sequences: Sequence[TokenIds], pad_token_id: int, *, is_causal: bool) -> Microbatch:
    """Lay out right-padded rows. In a causal trunk no real token sees the padding."""
    rows = [torch.tensor(ids, dtype=torch.int64) for ids in sequences]
    token_ids_BL = pad_sequence(rows, batch_first=True, padding_value=pad_token_id)
    length_N = torch.tensor([len(ids) for ids in sequences])
    num_rows, width = token_ids_BL.shape
    position_L = torch.arange(width)
    is_token_BL = position_L < length_N[:, None]
    first_N = torch.arange(num_rows) * width
    return Microbatch(
        token_ids_BL=token_ids_BL,
        # Padding repeats the last position, which is always within the trunk's position table.
        position_ids_BL=torch.minimum(position_L, length_N[:, None] - 1),
        segments=None,
        attention_mask_BL=None if is_causal or is_token_BL.all() else is_token_BL,
        first_N=first_N,
        last_N=first_N + length_N - 1,
        num_tokens=sum(map(len, sequences)),
    )


def _packed(sequences: Sequence[TokenIds], groups: Sequence[Sequence[int]]) -> Microbatch:
    """Lay out one packed row, the sequences of a group next to each other."""
    segment_ids: list[TokenIds] = []
    positions: list[_Ints] = []
    segments: list[Segment] = []

    def append(ids: TokenIds, *, position: int, context: Segment | None = None) -> Segment:
        """Add a segment whose first token has this position in its sequence."""
        start = segments[-1].stop if segments else 0
        segment = Segment(start=start, stop=start + len(ids), context=context)
        segment_ids.append(ids)
        positions.append(np.arange(position, position + len(ids)))
        segments.append(segment)
        return segment

    group_by_index = {index: group for group in groups for index in group}
    assert len(group_by_index) == sum(map(len, groups)), "a sequence is in one group at most"
    first, last = np.zeros((2, len(sequences)), dtype=np.int64)
    for index in range(len(sequences)):
        members = group_by_index.get(index, (index,))
        if index != min(members):
            continue  # laid out with the first sequence of its group
        shared = shared_length([sequences[member] for member in members])
        context = append(sequences[index][:shared], position=0) if shared else None
        for member in members:
            segment = append(sequences[member][shared:], position=shared, context=context)
            first[member], last[member] = segment.start, segment.stop - 1
    return Microbatch(
        token_ids_BL=torch.tensor(np.concatenate(segment_ids), dtype=torch.int64)[None],
        position_ids_BL=torch.from_numpy(np.concatenate(positions))[None],
        segments=tuple(segments),
        attention_mask_BL=None,
        first_N=torch.from_numpy(first),
        last_N=torch.from_numpy(last),
        num_tokens=sum(map(len, sequences)),
    )


def fill_bins(cost_N: _Ints, budget: int) -> list[list[int]]:
    """Divide indices into bins within a budget, from the highest cost to the lowest.

    So a bin holds similar costs. An index that costs more than the budget gets a bin of its own.

    Args:
        cost_N: Tokens of each index, shape [N].
        budget: Most tokens of a bin.
    """
    bins: list[list[int]] = []
    num_filled = budget
    for index in np.argsort(-cost_N, kind="stable").tolist():
        cost = int(cost_N[index])
        if not bins or num_filled + cost > budget:
            bins.append([])
            num_filled = 0
        bins[-1].append(index)
        num_filled += cost
    return bins


def cut_rows(
    sequences: Iterable[int], length_N: _Ints, layout: LayoutName, budget: int
) -> list[tuple[int, ...]]:
    """Divide sequences into batches of padded rows, the longest sequences first.

    Args:
        sequences: Indices of the sequences to divide.
        length_N: Tokens of every sequence, shape [N].
        layout: ``single``: batches of one row. ``sorted``: rows of nearly equal length.
        budget: Most token positions of one batch, padding included.
    """
    if layout == "single":
        return [(sequence,) for sequence in sequences]
    batches: list[list[int]] = []
    width = num_tokens = 0
    for sequence in sorted(sequences, key=lambda index: -int(length_N[index])):
        length = int(length_N[sequence])
        num_computed = width * (len(batches[-1]) + 1) if batches else 0
        num_padding = num_computed - num_tokens - length
        fits = num_computed <= budget and num_padding < MAX_PADDING_SHARE * num_computed
        if batches and fits:
            batches[-1].append(sequence)
            num_tokens += length
        else:
            batches.append([sequence])
            width = num_tokens = length
    return list(map(tuple, batches))
