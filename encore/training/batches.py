"""Choose the pairs of each step, and divide their responses into microbatches and processes.

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

from encore.model.backbone_options import LayoutName
from encore.model.layouts import cut_rows, fill_bins, lay_out, shared_length
from encore.training.distributed import Ranks
from encore.training.training_options import MICROBATCH_TOKENS, TrainingConfig

if TYPE_CHECKING:
    from encore.model.reward_model import MultiHeadRewardModel
    from encore.training.training_examples import Split, TrainingExamples

#: Number of consecutive steps among which pairs are sorted by length, for padded rows.
WINDOW_STEPS = 50

_Ints = NDArray[np.int64]


def shuffle_pairs(
    num_pairs: int,
    *,
    batch_pairs: int,
    seed: int,
    epoch: int,
    pair_tokens_P: NDArray[np.integer] | None = None,
) -> list[_Ints]:
    """Return the pairs of every step of an epoch: each pair once, steps equal in size within one.

    The result depends on the arguments alone, so a resumed run needs only the step number.

    Args:
        num_pairs: Number of training pairs.
        batch_pairs: Most pairs of a step.
        seed: Seed of the run.
        epoch: Number of the epoch, from 0.
        pair_tokens_P: Tokens of each pair, for padded rows. Within windows of `WINDOW_STEPS` steps,
            a step then has pairs of similar length, and the order of the steps is random.
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
        similar = np.split(by_length, np.cumsum([len(batch) for batch in window])[:-1])
        sorted_batches += [similar[index] for index in generator.permutation(len(similar))]
    return sorted_batches


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Training:
    """A model with the examples and settings of its training.

    Attributes:
        model: Model on its device, trained in place. Adapters and gradient checkpointing are set
            up.
        examples: Tokens and targets, centred on the training pairs.
        split: Rows of the training pairs and of the held-out pairs. Without held-out pairs nothing
            is evaluated.
        config: Settings of the run.
        pad_token_id: Id of the token that fills padded rows.
        ranks: Processes that train together; all of them run the same code.
    """

    model: MultiHeadRewardModel
    examples: TrainingExamples
    split: Split
    config: TrainingConfig
    pad_token_id: int
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def steps_per_epoch(self) -> int:
        """Return the steps of one pass over the training pairs. No pair is dropped."""
        return math.ceil(len(self.split.train_rows) / self.config.batch_pairs)

    @property
    def num_steps(self) -> int:
        """Return the number of steps of the whole run."""
        num_steps = self.config.epochs * self.steps_per_epoch
        return min(num_steps, self.config.max_steps or num_steps)

    def rows_of_epoch(self, epoch: int) -> list[_Ints]:
        """Return the rows in the examples of each step's pairs, for one epoch."""
        rows = self.split.train_rows
        batches = shuffle_pairs(
            len(rows),
            batch_pairs=self.config.batch_pairs,
            seed=self.config.seed,
            epoch=epoch,
            pair_tokens_P=self.examples.length_P[rows] if self.config.layout == "sorted" else None,
        )
        return [rows[batch] for batch in batches]


# --- microbatches -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchPlan:
    """The sequences of one backward pass.

    Attributes:
        parts: Sequences of each forward pass. The scores of all parts enter one loss. With several
            parts, both responses of a pair enter one loss although their lengths differ.
        weight: 1, or 0 for a pass that only takes part in the collectives of other processes.
    """

    parts: tuple[tuple[int, ...], ...]
    weight: float = 1.0

    @property
    def sequences(self) -> tuple[int, ...]:
        """Return the sequences of all parts, in the order in which they are computed."""
        return tuple(sequence for part in self.parts for sequence in part)


def plan_microbatches(
    length_N: Sequence[int] | _Ints,
    *,
    layout: LayoutName,
    tokens_per_microbatch: int,
    is_paired: bool,
    shared_P: Sequence[int] | None = None,
    ranks: Ranks | None = None,
) -> list[MicrobatchPlan]:
    """Return the microbatches of a step that this process computes.

    The result depends on the arguments alone, so the processes need not communicate. Each pair is
    computed by one process with weight 1. All processes have the same number of passes, because
    each pass is a round of collectives: a process with fewer passes repeats a pair with weight 0.

    A microbatch stays within the budget of tokens. A pair or sequence above the budget gets a
    microbatch of its own. Padding stays below `encore.model.layouts.MAX_PADDING_SHARE` of the
    computed positions; packed and prefix-shared layouts have none.

    Args:
        length_N: Tokens of each sequence of the step, shape [N], two for each pair.
        layout: Layout of the microbatches; see `TrainingConfig`.
        tokens_per_microbatch: Most tokens of one pass.
        is_paired: True if the loss needs both responses of a pair in one microbatch.
        shared_P: Tokens that both sequences of each pair begin with
            (`encore.model.layouts.shared_length`); only for layout ``prefix-shared``.
        ranks: This process and the number of processes. None: one process.
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
        return [MicrobatchPlan(parts=rows_of(pairs[indices])) for indices in bins]

    if ranks is None or ranks.count == 1:
        return plans_of(np.arange(len(cost_P)))
    plans_by_rank = [plans_of(pairs) for pairs in _assign_pairs(cost_P, num_ranks=ranks.count)]
    plans = plans_by_rank[ranks.rank]
    filler = replace(plans_of(np.array([cost_P.argmin()]))[0], weight=0.0)
    return plans + [filler] * (max(map(len, plans_by_rank)) - len(plans))


def _assign_pairs(cost_P: _Ints, *, num_ranks: int) -> list[_Ints]:
    """Return the pairs of each process in ascending order, with loads as equal as possible.

    From the most expensive pair on, each goes to the process with the lowest load so far.
    """
    pairs_by_rank: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [(0, rank) for rank in range(num_ranks)]  # already a heap
    for pair in np.argsort(-cost_P, kind="stable").tolist():
        tokens, rank = loads[0]
        pairs_by_rank[rank].append(pair)
        heapq.heapreplace(loads, (tokens + int(cost_P[pair]), rank))
    return [np.array(sorted(pairs), dtype=np.int64) for pairs in pairs_by_rank]


# --- scores -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedRows:
    """Pairs of the examples, divided into microbatches.

    Attributes:
        row_P: Rows of the pairs in the examples.
        sequences: Token ids of each sequence, two for each pair.
        target_NR: Centred ratings, shape [N, R], NaN if missing; [N, 0] for bradley-terry.
        plans: Microbatches of this process. Over all processes, every sequence is in exactly one
            microbatch with weight 1.
    """

    row_P: _Ints
    sequences: Sequence[NDArray[np.int32]]
    target_NR: NDArray[np.float32]
    plans: Sequence[MicrobatchPlan]


def plan_rows(training: Training, row_P: _Ints) -> PlannedRows:
    """Return the sequences and targets of pairs, and their microbatches for the model's device.

    Every process has all sequences; ``plans`` are those of this process.
    """
    examples, config = training.examples, training.config
    budget = config.tokens_per_microbatch or MICROBATCH_TOKENS[training.model.device.type]
    pairs = [(examples.chosen[row], examples.rejected[row]) for row in row_P]
    sequences = [sequence for pair in pairs for sequence in pair]
    target_PSR = examples.target_PSR[row_P]
    return PlannedRows(
        row_P=row_P,
        sequences=sequences,
        target_NR=target_PSR.reshape(len(sequences), target_PSR.shape[2]),
        plans=plan_microbatches(
            [len(sequence) for sequence in sequences],
            layout=config.layout,
            tokens_per_microbatch=budget,
            is_paired=config.learns_preferences,
            shared_P=list(map(shared_length, pairs)) if config.layout == "prefix-shared" else None,
            ranks=training.ranks,
        ),
    )


def score_microbatch(
    training: Training, rows: PlannedRows, plan: MicrobatchPlan
) -> tuple[_Ints, Tensor, int]:
    """Compute the scores of one microbatch on the model's device, with gradients.

    Returns:
        The scored sequences (where preferences are learnt, a chosen sequence is followed by its
        rejected one); their scores, float32, shape [N, R]; and the number of computed token
        positions.
    """
    model, config = training.model, training.config
    scores: list[Tensor] = []
    num_computed = 0
    for part in plan.parts:
        # Read by layout prefix-shared only, whose parts consist of whole pairs.
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
    # Only layout sorted separates the sequences of a pair; the others save the device a wait.
    if config.learns_preferences and config.layout == "sorted":
        order = np.argsort(sequences)
        return (
            sequences[order],
            score_NR[torch.from_numpy(order).to(score_NR.device)],
            num_computed,
        )
    return sequences, score_NR, num_computed
