"""Which pairs a step takes and how its responses are cut into microbatches: pure functions.

The n-th pair of a step has the sequences 2n (chosen) and 2n + 1 (rejected).

Suffixes: P pairs, N sequences (responses with their prompts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.model.layouts import cut_rows, fill_bins
from encore.training.config import LayoutName
from encore.training.schedule import steps_per_epoch

#: Steps whose pairs are sorted by length among each other before padded rows are cut from them.
WINDOW_STEPS = 50

_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchPlan:
    """The sequences of one backward pass.

    Attributes:
        parts: Sequences that are laid out and computed together; the scores of all parts meet in
            one loss. Several parts let both responses of a pair meet although their lengths differ.
        weight: 1, or 0 for a pass whose result does not count: others take part in it
            (`encore.training.dealing`).
    """

    parts: tuple[tuple[int, ...], ...]
    weight: float = 1.0

    @property
    def sequences(self) -> tuple[int, ...]:
        """The sequences of all parts, in the order in which they are computed."""
        return tuple(sequence for part in self.parts for sequence in part)


def step_rows(
    num_pairs: int,
    *,
    batch_pairs: int,
    seed: int,
    epoch: int,
    pair_tokens_P: NDArray[np.integer] | None = None,
) -> list[_Ints]:
    """The pairs of every step of an epoch: each pair once, steps of equal size to within one.

    A pure function of its arguments: where a resumed run goes on follows from the step alone.

    Args:
        num_pairs: Training pairs.
        batch_pairs: The most pairs a step may have.
        seed: Of the run.
        epoch: From 0.
        pair_tokens_P: Tokens of each pair, for padded rows: within windows of `WINDOW_STEPS` steps
            a step then has pairs of similar length, and the order of these steps is drawn.
    """
    generator = np.random.default_rng([seed, epoch])
    order_P = generator.permutation(num_pairs)
    batches = np.array_split(order_P, steps_per_epoch(num_pairs, batch_pairs=batch_pairs))
    if pair_tokens_P is None:
        return batches
    sorted_batches: list[_Ints] = []
    for first in range(0, len(batches), WINDOW_STEPS):
        window = batches[first : first + WINDOW_STEPS]
        sorted_batches += _sorted_window(window, pair_tokens_P, generator)
    return sorted_batches


def cut_step(
    length_N: Sequence[int] | NDArray[np.integer],
    *,
    layout: LayoutName,
    tokens_per_microbatch: int,
    is_paired: bool,
    shared_P: Sequence[int] | None = None,
) -> list[MicrobatchPlan]:
    """Microbatches that hold every sequence of a step once; computed tokens stay in the budget.

    A pair or sequence beyond the budget gets a microbatch of its own. In packed and prefix-shared
    layouts nothing is padded; padded rows are put together only while less than
    `encore.model.layouts.MAX_PADDING_SHARE` of what they compute is padding, whatever the lengths.

    Args:
        length_N: Tokens of each sequence, shape [N], two a pair.
        layout: See `TrainingConfig`.
        tokens_per_microbatch: The budget.
        is_paired: Whether the loss needs both responses of a pair in one microbatch.
        shared_P: For the layout prefix-shared: the tokens that both sequences of a pair begin with
            (`encore.model.layouts.shared_length`).
    """
    tokens_N: _Ints = np.asarray(length_N, dtype=np.int64)
    if layout in ("packed", "prefix-shared"):
        cost_P = tokens_N[::2] + tokens_N[1::2]
        if shared_P is not None and layout == "prefix-shared":
            cost_P = cost_P - np.asarray(shared_P, dtype=np.int64)
        bins = fill_bins(cost_P, tokens_per_microbatch)
        return [MicrobatchPlan(parts=(_sequences_of(pairs),)) for pairs in bins]
    if not is_paired:
        rows = cut_rows(range(len(tokens_N)), tokens_N, layout, tokens_per_microbatch)
        return [MicrobatchPlan(parts=(part,)) for part in rows]
    bins = fill_bins(tokens_N[::2] + tokens_N[1::2], tokens_per_microbatch)
    return [
        MicrobatchPlan(
            parts=tuple(cut_rows(_sequences_of(pairs), tokens_N, layout, tokens_per_microbatch))
        )
        for pairs in bins
    ]


def _sorted_window(
    batches: list[_Ints], pair_tokens_P: NDArray[np.integer], generator: np.random.Generator
) -> list[_Ints]:
    """The pairs of some batches, dealt again by length into batches of the same sizes."""
    pairs = np.concatenate(batches)
    by_length = pairs[np.argsort(pair_tokens_P[pairs], kind="stable")]
    ends = np.cumsum([len(batch) for batch in batches])
    dealt = np.split(by_length, ends[:-1])
    return [dealt[index] for index in generator.permutation(len(dealt))]


def _sequences_of(pairs: Sequence[int]) -> tuple[int, ...]:
    return tuple(sequence for pair in pairs for sequence in (2 * pair, 2 * pair + 1))
