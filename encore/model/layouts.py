"""Lay sequences of unequal length out as one batch: packed, prefix-shared, sorted or single.

Legend: N sequences, B rows, L tokens of a row (B x L are computed).

A packed row holds sequence after sequence without padding; a *segment* is a run of it whose tokens
see one another and, in a prefix-shared row, also the beginning they have in common with others.
Positions restart with every sequence, so scores do not depend on the layout.
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
from encore.model.backbone_config import LayoutName

#: Rows are put together only while less than this share of what they compute is padding.
MAX_PADDING_SHARE = 0.02

TokenIds = NDArray[np.int32]
_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Tokens ``[start, stop)`` of a packed row, which attend to themselves and to a context.

    The context is another segment that lies before, or none: the beginning shared by the sequences
    of a group.
    """

    start: int
    stop: int
    context: Segment | None = None

    @property
    def num_queries(self) -> int:
        """Tokens of the segment itself."""
        return self.stop - self.start

    @property
    def num_keys(self) -> int:
        """Tokens its last token attends to."""
        return self.num_queries + (self.context.num_queries if self.context else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """What one forward pass reads.

    Attributes:
        token_ids_BL: Token ids; one row when packed.
        position_ids_BL: Position of each token in its own sequence.
        segments: Of a packed row, in order, together all of it; None for padded rows.
        attention_mask_BL: True for a real token; only where padding must be hidden (an encoder's).
        first_N: Flat index into [B*L] of each sequence's own first token: the first it does not
            share, which is its first token where nothing is shared.
        last_N: Flat index of each sequence's last token.
        num_tokens: Tokens of all sequences, as if each stood alone.
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
        """Token positions the forward pass computes: B*L."""
        return int(self.token_ids_BL.numel())

    def to(self, device: str | torch.device) -> Microbatch:
        """The same on another device."""
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
    """One microbatch with the sequences in their given order (first_N, last_N, scores).

    Args:
        sequences: Token ids of each sequence, none empty.
        layout: ``packed``: one row, no padding. ``prefix-shared``: the same, and what the sequences
            of a group have in common at their beginning is computed once. ``sorted``: right-padded
            rows (callers put sequences of like length together). ``single``: one row per sequence
            too, and only one sequence.
        groups: For ``prefix-shared``: indices of sequences that may share a beginning (a pair);
            sequences named in no group stand alone.
        pad_token_id: For padding.
        is_causal: Whether the trunk attends to earlier tokens only. Right padding then needs no
            mask, and only then may a beginning be shared.

    Raises:
        InputError: nothing to lay out, an empty sequence, ``single`` with several sequences,
            ``prefix-shared`` with an encoder.
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
    """Tokens that all sequences begin with, at most one less than the shortest has.

    The last token is what a causal trunk is pooled at, so each sequence keeps its own. One sequence
    alone shares nothing.
    """
    shortest = min(map(len, sequences)) - 1
    if len(sequences) < 2 or shortest < 1:
        return 0
    first = sequences[0][:shortest]
    is_same = np.ones(shortest, dtype=np.bool_)
    for other in sequences[1:]:
        is_same &= first == other[:shortest]
    return shortest if is_same.all() else int(is_same.argmin())


def _padded(sequences: Sequence[TokenIds], pad_token_id: int, *, is_causal: bool) -> Microbatch:
    """Right-padded rows: what a causal trunk computes never sees what stands to the right."""
    rows = [torch.tensor(ids, dtype=torch.int64) for ids in sequences]
    token_ids_BL = pad_sequence(rows, batch_first=True, padding_value=pad_token_id)
    length_N = torch.tensor([len(ids) for ids in sequences])
    num_rows, width = token_ids_BL.shape
    place_L = torch.arange(width)
    is_token_BL = place_L < length_N[:, None]
    first_N = torch.arange(num_rows) * width
    return Microbatch(
        token_ids_BL=token_ids_BL,
        # Padding repeats the last position: within the trunk's table however far a row is padded.
        position_ids_BL=torch.minimum(place_L, length_N[:, None] - 1),
        segments=None,
        attention_mask_BL=None if is_causal or is_token_BL.all() else is_token_BL,
        first_N=first_N,
        last_N=first_N + length_N - 1,
        num_tokens=sum(map(len, sequences)),
    )


def _packed(sequences: Sequence[TokenIds], groups: Sequence[Sequence[int]]) -> Microbatch:
    parts: list[TokenIds] = []
    positions: list[_Ints] = []
    segments: list[Segment] = []

    def append(ids: TokenIds, *, position: int, context: Segment | None = None) -> Segment:
        """Add tokens that begin at a position of their sequence."""
        start = segments[-1].stop if segments else 0
        segment = Segment(start=start, stop=start + len(ids), context=context)
        parts.append(ids)
        positions.append(np.arange(position, position + len(ids)))
        segments.append(segment)
        return segment

    group_of = {index: group for group in groups for index in group}
    assert len(group_of) == sum(map(len, groups)), "a sequence stands in one group"
    first, last = np.zeros((2, len(sequences)), dtype=np.int64)
    for index in range(len(sequences)):
        members = group_of.get(index, (index,))
        if index != min(members):
            continue  # laid out with the first of its group
        shared = shared_length([sequences[member] for member in members])
        context = append(sequences[index][:shared], position=0) if shared else None
        for member in members:
            segment = append(sequences[member][shared:], position=shared, context=context)
            first[member], last[member] = segment.start, segment.stop - 1
    return Microbatch(
        token_ids_BL=torch.tensor(np.concatenate(parts), dtype=torch.int64)[None],
        position_ids_BL=torch.from_numpy(np.concatenate(positions))[None],
        segments=tuple(segments),
        attention_mask_BL=None,
        first_N=torch.from_numpy(first),
        last_N=torch.from_numpy(last),
        num_tokens=sum(map(len, sequences)),
    )


def fill_bins(cost_N: _Ints, budget: int) -> list[list[int]]:
    """Bins within the budget, the most expensive first, so that equals come together.

    What costs more than the budget gets a bin of its own.

    Args:
        cost_N: Tokens of each thing, shape [N].
        budget: Of a bin.
    """
    bins: list[list[int]] = []
    filled = budget
    for place in np.argsort(-cost_N, kind="stable").tolist():
        cost = int(cost_N[place])
        if not bins or filled + cost > budget:
            bins.append([])
            filled = 0
        bins[-1].append(place)
        filled += cost
    return bins


def cut_rows(
    sequences: Iterable[int], length_N: _Ints, layout: LayoutName, budget: int
) -> list[tuple[int, ...]]:
    """Sequences that are computed together as padded rows, longest first.

    Args:
        sequences: Indices of those to cut.
        length_N: Tokens of every sequence, shape [N].
        layout: ``single``: one row each. ``sorted``: rows of nearly equal length.
        budget: Token positions of one batch, padding included.
    """
    if layout == "single":
        return [(sequence,) for sequence in sequences]
    rows: list[list[int]] = []
    width = num_tokens = 0
    for sequence in sorted(sequences, key=lambda index: -int(length_N[index])):
        length = int(length_N[sequence])
        computed = width * (len(rows[-1]) + 1) if rows else 0
        padding = computed - num_tokens - length
        if rows and computed <= budget and padding < MAX_PADDING_SHARE * computed:
            rows[-1].append(sequence)
            num_tokens += length
        else:
            rows.append([sequence])
            width = num_tokens = length
    return [tuple(row) for row in rows]
