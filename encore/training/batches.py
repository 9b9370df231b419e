"""Which pairs a step takes, and how its responses are cut into microbatches and dealt to processes.

The n-th pair of a step has the sequences 2n (chosen) and 2n + 1 (rejected).

Suffixes: P pairs, N sequences (responses with their prompts), R heads.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from encore.model.layouts import cut_rows, fill_bins, lay_out, shared_length
from encore.training.config import LayoutName, TrainingConfig
from encore.training.ranks import Ranks
from encore.training.schedule import steps_per_epoch

if TYPE_CHECKING:
    from encore.model.reward_model import MultiHeadRewardModel
    from encore.training.examples import TrainingExamples

#: Steps whose pairs are sorted by length among each other before padded rows are cut from them.
WINDOW_STEPS = 50

_Ints = NDArray[np.int64]


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
        pairs = np.concatenate(window)
        by_length = pairs[np.argsort(pair_tokens_P[pairs], kind="stable")]
        dealt = np.split(by_length, np.cumsum([len(batch) for batch in window])[:-1])
        sorted_batches += [dealt[index] for index in generator.permutation(len(dealt))]
    return sorted_batches


# --- microbatches -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchPlan:
    """The sequences of one backward pass.

    Attributes:
        parts: Sequences that are laid out and computed together; the scores of all parts meet in
            one loss. Several parts let both responses of a pair meet although their lengths differ.
        weight: 1, or 0 for a pass whose result does not count: others take part in it
            (`shard_batch`).
    """

    parts: tuple[tuple[int, ...], ...]
    weight: float = 1.0

    @property
    def sequences(self) -> tuple[int, ...]:
        """The sequences of all parts, in the order in which they are computed."""
        return tuple(sequence for part in self.parts for sequence in part)


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
    is_padded = layout in ("sorted", "single")
    if is_padded and not is_paired:
        rows = cut_rows(range(len(tokens_N)), tokens_N, layout, tokens_per_microbatch)
        return [MicrobatchPlan(parts=(part,)) for part in rows]
    cost_P = tokens_N[::2] + tokens_N[1::2]
    if shared_P is not None and layout == "prefix-shared":
        cost_P = cost_P - np.asarray(shared_P, dtype=np.int64)
    plans = []
    for pairs in fill_bins(cost_P, tokens_per_microbatch):
        sequences = tuple(sequence for pair in pairs for sequence in (2 * pair, 2 * pair + 1))
        parts = [sequences]
        if is_padded:
            parts = cut_rows(sequences, tokens_N, layout, tokens_per_microbatch)
        plans.append(MicrobatchPlan(parts=tuple(parts)))
    return plans


def shard_batch(
    length_N: Sequence[int] | _Ints,
    *,
    ranks: Ranks,
    layout: LayoutName,
    tokens_per_microbatch: int,
    is_paired: bool,
    shared_P: Sequence[int] | None = None,
) -> list[MicrobatchPlan]:
    """The microbatches of one process: a pure function, so that nothing need be sent.

    One process has those of `cut_step`. Of several, each pair of the step is in one process's
    passes with weight 1. Every pass is a round of collectives that all processes take part in, so
    all have the same number: who has fewer repeats a pair of the step with weight 0.

    Args:
        length_N: Tokens of each sequence of the step, shape [N], two a pair.
        ranks: Which process of how many.
        layout: See `cut_step`, also for what follows.
        tokens_per_microbatch: Of one process's pass.
        is_paired: Whether the loss needs both responses of a pair in one microbatch.
        shared_P: For the layout prefix-shared.
    """
    tokens_N: _Ints = np.asarray(length_N, dtype=np.int64)
    saved_P: _Ints = np.asarray(shared_P or np.zeros(len(tokens_N) // 2), dtype=np.int64)

    def cut_pairs(pairs: _Ints) -> list[MicrobatchPlan]:
        sequences = np.stack([2 * pairs, 2 * pairs + 1], axis=1).ravel()
        plans = cut_step(
            tokens_N[sequences],
            layout=layout,
            tokens_per_microbatch=tokens_per_microbatch,
            is_paired=is_paired,
            shared_P=saved_P[pairs].tolist(),
        )
        # In the step's own numbers.
        return [
            replace(plan, parts=tuple(tuple(sequences[list(part)].tolist()) for part in plan.parts))
            for plan in plans
        ]

    cost_P = tokens_N[::2] + tokens_N[1::2] - saved_P
    if ranks.count == 1:
        return cut_pairs(np.arange(len(cost_P)))
    shares = [cut_pairs(pairs) for pairs in deal_pairs(cost_P, num_ranks=ranks.count)]
    idle = replace(cut_pairs(np.array([cost_P.argmin()]))[0], weight=0.0)
    num_passes = max(len(plans) for plans in shares)
    own = shares[ranks.rank]
    return own + [idle] * (num_passes - len(own))


def deal_pairs(cost_P: _Ints, *, num_ranks: int) -> list[_Ints]:
    """The pairs of each process, ascending: the most expensive first, to whom has least so far."""
    dealt: list[list[int]] = [[] for _ in range(num_ranks)]
    load = [(0, rank) for rank in range(num_ranks)]  # a heap as it is
    for pair in np.argsort(-cost_P, kind="stable").tolist():
        tokens, rank = heapq.heappop(load)
        dealt[rank].append(pair)
        heapq.heappush(load, (tokens + int(cost_P[pair]), rank))
    return [np.array(sorted(pairs), dtype=np.int64) for pairs in dealt]


# --- scores -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedRows:
    """Some pairs of the examples, cut into microbatches.

    Attributes:
        row_P: Their rows in the examples.
        sequences: Token ids, two sequences a pair.
        target_NR: Centred ratings, NaN where missing, shape [N, R]; [N, 0] for bradley-terry.
        plans: Of this process; every sequence is in exactly one that counts, in one process.
    """

    row_P: NDArray[np.int64]
    sequences: Sequence[NDArray[np.int32]]
    target_NR: NDArray[np.float32]
    plans: Sequence[MicrobatchPlan]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sequence, shape [N]."""
        return np.array([len(sequence) for sequence in self.sequences], dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scored:
    """What the model says of one microbatch.

    Attributes:
        sequences: Which of the rows' sequences; where the loss is over pairs, a chosen one is
            followed by its rejected one.
        score_NR: In the same order, float32, shape [N, R].
        num_computed: Token positions that were computed.
    """

    sequences: NDArray[np.int64]
    score_NR: Tensor
    num_computed: int


def plan_rows(
    examples: TrainingExamples,
    row_P: NDArray[np.int64],
    *,
    config: TrainingConfig,
    device: str,
    ranks: Ranks,
) -> PlannedRows:
    """The sequences and targets of some pairs, and how they are cut for a kind of device.

    All of them are here in every process; ``plans`` are this process's share.
    """
    both = [(examples.chosen[row], examples.rejected[row]) for row in row_P]
    is_shared = config.layout == "prefix-shared"
    sequences = [sequence for pair in both for sequence in pair]
    num_heads = examples.target_chosen_PR.shape[1]
    target_PSR = np.stack(
        [examples.target_chosen_PR[row_P], examples.target_rejected_PR[row_P]], axis=1
    )
    return PlannedRows(
        row_P=row_P,
        sequences=sequences,
        target_NR=target_PSR.reshape(2 * len(row_P), num_heads),
        plans=shard_batch(
            [len(sequence) for sequence in sequences],
            ranks=ranks,
            layout=config.layout,
            tokens_per_microbatch=config.microbatch_tokens(device),
            is_paired=config.objective == "bradley-terry",
            shared_P=[shared_length(pair) for pair in both] if is_shared else None,
        ),
    )


def score_microbatch(
    model: MultiHeadRewardModel,
    rows: PlannedRows,
    plan: MicrobatchPlan,
    *,
    config: TrainingConfig,
    pad_token_id: int,
) -> Scored:
    """The scores of one microbatch, differentiable, on the model's device."""
    device = model.heads.weight.device
    scores: list[Tensor] = []
    num_computed = 0
    for part in plan.parts:
        # Only in this layout are the sequences of a part whole pairs, one after the other.
        pairs = [(first, first + 1) for first in range(0, len(part), 2)]
        microbatch = lay_out(
            [rows.sequences[sequence] for sequence in part],
            layout=config.layout,
            groups=pairs if config.layout == "prefix-shared" else None,
            pad_token_id=pad_token_id,
            is_causal=model.is_causal,
        )
        scores.append(model(microbatch.to(device)))
        num_computed += microbatch.num_computed
    sequences = np.array(plan.sequences, dtype=np.int64)
    score_NR = scores[0] if len(scores) == 1 else torch.cat(scores)
    # Only rows sorted by length part the two of a pair; elsewhere the device waits for no order.
    if config.objective == "bradley-terry" and config.layout == "sorted":
        order = np.argsort(sequences)
        score_NR = score_NR[torch.from_numpy(order).to(device)]
        sequences = sequences[order]
    return Scored(sequences=sequences, score_NR=score_NR, num_computed=num_computed)
