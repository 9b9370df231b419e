"""Which pairs a step takes, and how its responses are cut into microbatches and dealt to processes.

The n-th pair of a step has the sequences 2n (chosen) and 2n + 1 (rejected).

Suffixes: P pairs, N sequences (responses with their prompts), S responses of a pair, R heads.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from encore.model.backbone_config import LayoutName
from encore.model.layouts import cut_rows, fill_bins, lay_out, shared_length
from encore.training.ranks import Ranks
from encore.training.training_config import MICROBATCH_TOKENS, TrainingConfig

if TYPE_CHECKING:
    from encore.model.reward_model import MultiHeadRewardModel
    from encore.training.training_examples import Split, TrainingExamples

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
    batches = np.array_split(order_P, math.ceil(num_pairs / batch_pairs))
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Training:
    """A model and what it learns from.

    Attributes:
        model: On its device, adapters and gradient checkpointing set up; trained in place.
        examples: Centred on the training pairs.
        split: Training and held-out rows; without held-out rows nothing is evaluated.
        config: Of the run.
        pad_token_id: For padded rows.
        ranks: The processes that train together; all of them run the same code.
    """

    model: MultiHeadRewardModel
    examples: TrainingExamples
    split: Split
    config: TrainingConfig
    pad_token_id: int
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one pass over the training pairs: each is in exactly one, none is dropped."""
        return math.ceil(len(self.split.train_rows) / self.config.batch_pairs)

    @property
    def num_steps(self) -> int:
        """Of the whole run."""
        of_epochs = self.config.epochs * self.steps_per_epoch
        return min(of_epochs, self.config.max_steps or of_epochs)

    def rows_of_epoch(self, epoch: int) -> list[_Ints]:
        """The rows of each step of an epoch."""
        rows = self.split.train_rows
        places = step_rows(
            len(rows),
            batch_pairs=self.config.batch_pairs,
            seed=self.config.seed,
            epoch=epoch,
            pair_tokens_P=self.examples.length_P[rows] if self.config.layout == "sorted" else None,
        )
        return [rows[place_P] for place_P in places]


# --- microbatches -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchPlan:
    """The sequences of one backward pass.

    Attributes:
        parts: Sequences that are laid out and computed together; the scores of all parts meet in
            one loss. Several parts let both responses of a pair meet although their lengths differ.
        weight: 1, or 0 for a pass whose result does not count: others take part in it (`cut_step`).
    """

    parts: tuple[tuple[int, ...], ...]
    weight: float = 1.0

    @property
    def sequences(self) -> tuple[int, ...]:
        """The sequences of all parts, in the order in which they are computed."""
        return tuple(sequence for part in self.parts for sequence in part)


def cut_step(
    length_N: Sequence[int] | _Ints,
    *,
    layout: LayoutName,
    tokens_per_microbatch: int,
    is_paired: bool,
    shared_P: Sequence[int] | None = None,
    ranks: Ranks | None = None,
) -> list[MicrobatchPlan]:
    """The microbatches of one process: a pure function, so that nothing need be sent.

    One process has every sequence of the step once. Of several, each pair is in the passes of one,
    with weight 1. All have as many passes, since each is a round of collectives: who has fewer
    repeats a pair with weight 0.

    Computed tokens stay in the budget; a pair or sequence beyond it gets a microbatch of its own.
    Padded rows are put together only while less than `encore.model.layouts.MAX_PADDING_SHARE` of
    what they compute is padding; packed and prefix-shared layouts have none.

    Args:
        length_N: Tokens of each sequence of the step, shape [N], two a pair.
        layout: See `TrainingConfig`.
        tokens_per_microbatch: The budget of one process's pass.
        is_paired: Whether the loss needs both responses of a pair in one microbatch.
        shared_P: For the layout prefix-shared: the tokens that both sequences of a pair begin with
            (`encore.model.layouts.shared_length`).
        ranks: Which process of how many; None: alone.
    """
    tokens_N: _Ints = np.asarray(length_N, dtype=np.int64)
    cost_P = tokens_N[::2] + tokens_N[1::2]
    if shared_P is not None:
        cost_P = cost_P - np.asarray(shared_P, dtype=np.int64)

    def rows_of(pairs: _Ints) -> tuple[tuple[int, ...], ...]:
        sequences = tuple((2 * pairs[:, np.newaxis] + np.arange(2)).ravel().tolist())
        if layout in ("packed", "prefix-shared"):
            return (sequences,)
        return tuple(cut_rows(sequences, tokens_N, layout, tokens_per_microbatch))

    def plans_of(pairs: _Ints) -> list[MicrobatchPlan]:
        if layout in ("sorted", "single") and not is_paired:
            return [MicrobatchPlan(parts=(row,)) for row in rows_of(pairs)]
        bins = fill_bins(cost_P[pairs], tokens_per_microbatch)
        return [MicrobatchPlan(parts=rows_of(pairs[places])) for places in bins]

    if ranks is None or ranks.count == 1:
        return plans_of(np.arange(len(cost_P)))
    shares = [plans_of(pairs) for pairs in _deal_pairs(cost_P, num_ranks=ranks.count)]
    idle = replace(plans_of(np.array([cost_P.argmin()]))[0], weight=0.0)
    return shares[ranks.rank] + [idle] * (max(map(len, shares)) - len(shares[ranks.rank]))


def _deal_pairs(cost_P: _Ints, *, num_ranks: int) -> list[_Ints]:
    """The pairs of each process, ascending: the most expensive first, to whom has least so far."""
    dealt: list[list[int]] = [[] for _ in range(num_ranks)]
    load = [(0, rank) for rank in range(num_ranks)]  # a heap as it is
    for pair in np.argsort(-cost_P, kind="stable").tolist():
        tokens, rank = load[0]
        dealt[rank].append(pair)
        heapq.heapreplace(load, (tokens + int(cost_P[pair]), rank))
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

    row_P: _Ints
    sequences: Sequence[NDArray[np.int32]]
    target_NR: NDArray[np.float32]
    plans: Sequence[MicrobatchPlan]


def plan_rows(training: Training, row_P: _Ints) -> PlannedRows:
    """The sequences and targets of some pairs, and how they are cut for the model's device.

    All of them are here in every process; ``plans`` are this process's share.
    """
    examples, config = training.examples, training.config
    budget = config.tokens_per_microbatch or MICROBATCH_TOKENS[training.model.device.type]
    both = [(examples.chosen[row], examples.rejected[row]) for row in row_P]
    sequences = [sequence for pair in both for sequence in pair]
    target_PSR = examples.target_PSR[row_P]
    return PlannedRows(
        row_P=row_P,
        sequences=sequences,
        target_NR=target_PSR.reshape(len(sequences), target_PSR.shape[2]),
        plans=cut_step(
            [len(sequence) for sequence in sequences],
            layout=config.layout,
            tokens_per_microbatch=budget,
            is_paired=config.objective == "bradley-terry",
            shared_P=list(map(shared_length, both)) if config.layout == "prefix-shared" else None,
            ranks=training.ranks,
        ),
    )


def score_microbatch(
    training: Training, rows: PlannedRows, plan: MicrobatchPlan
) -> tuple[_Ints, Tensor, int]:
    """What the model says of one microbatch, differentiable, on its device.

    Returns:
        Which of the rows' sequences were scored (where the loss is over pairs, a chosen one is
        followed by its rejected one); their scores, float32, shape [N, R]; computed positions.
    """
    model, config = training.model, training.config
    scores: list[Tensor] = []
    num_computed = 0
    for part in plan.parts:
        # Only in this layout are the sequences of a part whole pairs, one after the other.
        pairs = [(first, first + 1) for first in range(0, len(part), 2)]
        microbatch = lay_out(
            [rows.sequences[sequence] for sequence in part],
            layout=config.layout,
            groups=pairs,
            pad_token_id=training.pad_token_id,
            is_causal=model.is_causal,
        )
        scores.append(model(microbatch.to(training.model.device)))
        num_computed += microbatch.num_computed
    sequences = np.array(plan.sequences, dtype=np.int64)
    score_NR = scores[0] if len(scores) == 1 else torch.cat(scores)
    # Only rows sorted by length part the two of a pair; elsewhere the device waits for no order.
    if config.objective == "bradley-terry" and config.layout == "sorted":
        order = np.argsort(sequences)
        return (
            sequences[order],
            score_NR[torch.from_numpy(order).to(score_NR.device)],
            num_computed,
        )
    return sequences, score_NR, num_computed
