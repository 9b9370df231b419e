"""The training loop: every step is a function of seed, step number, weights and optimizer state.

Nothing else is carried from step to step, no sampler and no random state, so a run that goes on
from a checkpoint takes the very steps it would have taken.

Suffixes: P pairs, N sequences, M microbatches, R heads.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from encore.errors import InputError
from encore.model.layouts import check_layout
from encore.training.batches import PlannedRows, Scored, plan_rows, score_microbatch, step_rows
from encore.training.config import TrainingConfig
from encore.training.evaluation import TrainingDivergedError, evaluate
from encore.training.losses import loss_sum, num_terms
from encore.training.meter import SpeedMeter, peak_memory_bytes, speed_meter_of
from encore.training.metrics_log import EvaluationRecord, StepRecord
from encore.training.optimizers import NonFiniteGradientError
from encore.training.ranks import Ranks
from encore.training.schedule import intervals, learning_rate_at, steps_per_epoch

if TYPE_CHECKING:
    from encore.model.reward_model import MultiHeadRewardModel
    from encore.training.examples import TrainingExamples
    from encore.training.optimizers import StepOptimizer
    from encore.training.splits import Split


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """What the steps of a run are taken with.

    Attributes:
        model: On its device, adapters and gradient checkpointing set up; trained in place.
        examples: Centred on the training pairs.
        split: Training and held-out rows; without held-out rows nothing is evaluated.
        config: Of the run.
        optimizer: With the state that belongs to the step to start from.
        pad_token_id: For padded rows.
        ranks: The processes that take every step together; all of them run the loop.
    """

    model: MultiHeadRewardModel
    examples: TrainingExamples
    split: Split
    config: TrainingConfig
    optimizer: StepOptimizer
    pad_token_id: int
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def device(self) -> torch.device:
        """The model's."""
        return self.model.heads.weight.device

    @property
    def per_epoch(self) -> int:
        """Steps of one pass over the training pairs."""
        return steps_per_epoch(len(self.split.train_rows), batch_pairs=self.config.batch_pairs)


def run_steps(
    steps: Steps,
    *,
    start_step: int,
    num_steps: int,
    on_step: Callable[[StepRecord], None],
    on_evaluation: Callable[[EvaluationRecord], None],
    save: Callable[[int, EvaluationRecord | None], object],
) -> None:
    """Take the steps ``start_step + 1`` to ``num_steps``, evaluating and saving when it is due.

    Args:
        steps: See `Steps`.
        start_step: Steps already done.
        num_steps: Of the whole run: the learning rate falls towards its end.
        on_step: Called after each step.
        on_evaluation: Called after each evaluation.
        save: Writes a checkpoint of a step, given the evaluation of the same step if there is one.

    Raises:
        TrainingDivergedError: A loss is not finite (no weight was changed by that step), or a
            gradient is not. Nothing is saved.
        InputError: A layout or a number of heads that does not fit the model.
    """
    model, config = steps.model, steps.config
    check_layout(config.layout, is_causal=model.is_causal)
    is_multi_head = config.objective == "multi-head"
    num_heads = steps.examples.target_chosen_PR.shape[1] if is_multi_head else 1
    if len(model.head_ids) != num_heads:
        raise InputError(
            f"model: it has {len(model.head_ids)} heads, objective {config.objective} on these "
            f"examples needs {num_heads}; build it with head_ids of the examples"
        )
    meter = speed_meter_of(model, method=config.method, num_devices=steps.ranks.count)
    evaluate_every, checkpoint_every = intervals(config, steps_per_epoch=steps.per_epoch)
    epoch, epoch_rows = -1, list[NDArray[np.int64]]()
    model.train()
    for step in range(start_step + 1, num_steps + 1):
        if epoch != (step - 1) // steps.per_epoch:
            epoch = (step - 1) // steps.per_epoch
            epoch_rows = _epoch_rows(steps, epoch)
        is_last = step == num_steps
        needs_evaluation = len(steps.split.evaluation_rows) > 0 and (
            is_last or step % evaluate_every == 0
        )
        needs_checkpoint = is_last or step % checkpoint_every == 0
        on_step(
            _take_step(
                steps,
                step,
                steps.split.train_rows[epoch_rows[(step - 1) % steps.per_epoch]],
                num_steps=num_steps,
                meter=meter,
                is_waited_for=needs_evaluation or needs_checkpoint,
            )
        )
        evaluation = None
        if needs_evaluation:
            evaluation = evaluate(
                model,
                steps.examples,
                steps.split.evaluation_rows,
                config,
                pad_token_id=steps.pad_token_id,
                step=step,
                ranks=steps.ranks,
            )
            on_evaluation(evaluation)
        if needs_checkpoint:
            save(step, evaluation)


def _epoch_rows(steps: Steps, epoch: int) -> list[NDArray[np.int64]]:
    """Of each step of an epoch, which of the training rows it takes."""
    examples, train_rows = steps.examples, steps.split.train_rows
    length_P = examples.chosen.lengths + examples.rejected.lengths
    return step_rows(
        len(train_rows),
        batch_pairs=steps.config.batch_pairs,
        seed=steps.config.seed,
        epoch=epoch,
        pair_tokens_P=length_P[train_rows] if steps.config.layout == "sorted" else None,
    )


def _take_step(
    steps: Steps,
    step: int,
    row_P: NDArray[np.int64],
    *,
    num_steps: int,
    meter: SpeedMeter,
    is_waited_for: bool,
) -> StepRecord:
    """Forward and backward passes over some pairs, the finite check, the update."""
    began = time.monotonic()
    config, device = steps.config, steps.device
    rows = plan_rows(steps.examples, row_P, config=config, device=device.type, ranks=steps.ranks)
    rate = learning_rate_at(step, config=config, num_steps=num_steps)
    mean_loss, num_computed = _backward(steps, rows, step=step, learning_rate=rate)
    try:
        grad_norm = steps.optimizer.finish()
    except NonFiniteGradientError as error:
        raise TrainingDivergedError(
            what=f"the gradient of {error.names[0]} is not finite",
            step=step,
            pair_ids=steps.examples.pair_id_P[row_P].tolist(),
        ) from error
    if is_waited_for and device.type == "cuda":
        torch.cuda.synchronize(device)  # or the step's last work would be timed as another's
    seconds = time.monotonic() - began
    lengths = rows.lengths.tolist()
    speed, mfu = meter.add(lengths, num_computed=num_computed, seconds=seconds)
    return StepRecord(
        step=step,
        epoch=step / steps.per_epoch,
        loss=mean_loss,
        learning_rate=rate,
        num_tokens=sum(lengths),
        num_computed=num_computed,
        seconds=seconds,
        tokens_per_second=speed,
        mfu=mfu,
        peak_memory_bytes=peak_memory_bytes(device),
        grad_norm=grad_norm,
        num_pairs=len(row_P),
    )


def _backward(
    steps: Steps, rows: PlannedRows, *, step: int, learning_rate: float
) -> tuple[float, int]:
    """All passes of a step; its loss and computed token positions over all processes."""
    config, ranks = steps.config, steps.ranks
    # Every pair has a rating somewhere, so a step has terms; 1 keeps an empty one harmless.
    terms = max(1, num_terms(rows.target_NR, objective=config.objective))
    losses: list[Tensor] = []
    scored: list[Scored] = []
    found = 0.0, 0
    for index, plan in enumerate(rows.plans):
        # All processes have as many passes, each with dropout masks of its own.
        _seed_dropout(config.seed, step=step, microbatch=ranks.rank * len(rows.plans) + index)
        microbatch = score_microbatch(
            steps.model, rows, plan, config=config, pad_token_id=steps.pad_token_id
        )
        target_NR = torch.from_numpy(rows.target_NR[microbatch.sequences])
        target_NR = target_NR.to(steps.device, non_blocking=True)
        total = loss_sum(microbatch.score_NR, target_NR, objective=config.objective)
        loss = total * plan.weight / terms
        losses.append(loss.detach())
        scored.append(replace(microbatch, score_NR=microbatch.score_NR.detach()))
        if index == len(rows.plans) - 1:
            # From here on weights may change, in the backward pass itself.
            found = _finite_sum(steps, losses, scored, rows, step=step)
            steps.optimizer.arm(step=step, learning_rate=learning_rate)
        loss.backward()
    return found


def _finite_sum(
    steps: Steps, losses: list[Tensor], scored: list[Scored], rows: PlannedRows, *, step: int
) -> tuple[float, int]:
    """The step's loss and computed positions: the one place where the device is waited for."""
    loss_M = torch.stack(losses).double().cpu().numpy()
    own = [float(loss_M.sum()), sum(microbatch.num_computed for microbatch in scored)]
    total = steps.ranks.summed(torch.tensor(own, dtype=torch.float64))
    mean_loss, num_computed = total.tolist()
    if math.isfinite(mean_loss):
        return mean_loss, int(num_computed)
    steps.model.zero_grad(set_to_none=True)
    # Pairs with a score that is not finite, or all pairs of these microbatches if there is none.
    bad = [scored[index] for index in np.flatnonzero(~np.isfinite(loss_M))]
    is_finite = [torch.isfinite(one.score_NR).all(dim=1).cpu().numpy() for one in bad]
    suspects = [one.sequences[~finite] for one, finite in zip(bad, is_finite, strict=True)]
    if not any(len(found) for found in suspects):
        suspects = [one.sequences for one in bad]
    is_bad_P = np.zeros(len(rows.row_P), dtype=np.int64)
    for found in suspects:
        is_bad_P[found // 2] = 1
    is_bad = steps.ranks.summed(torch.from_numpy(is_bad_P)).numpy() > 0
    raise TrainingDivergedError(
        what=f"the loss is {mean_loss}",
        step=step,
        pair_ids=steps.examples.pair_id_P[rows.row_P[is_bad]].tolist(),
    )


def _seed_dropout(seed: int, *, step: int, microbatch: int) -> None:
    """Set torch's random state from the step alone, so that it need not be saved."""
    digest = hashlib.blake2b(f"{seed}:{step}:{microbatch}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "big") >> 1)
