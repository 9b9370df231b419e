"""The training loop: every step depends only on seed, step number, weights and optimizer state.

No sampler and no random state is carried from step to step. So a run that continues from a
checkpoint takes the same steps as an uninterrupted run.

Suffixes: P pairs, N sequences, M microbatches, R heads, T loss terms.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import resource
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from encore.core.errors import InputError
from encore.model.backbone_shape import BackboneShape, shape_from_config, useful_flops
from encore.model.gpus import peak_flops
from encore.model.held_out_scores import HeldOutScores
from encore.training.batches import PlannedRows, Training, plan_rows, score_microbatch
from encore.training.distributed import local_part
from encore.training.evaluation import TrainingDivergedError, evaluate, loss_scale, loss_terms
from encore.training.gradient_norms import NonFiniteGradientError
from encore.training.optimizers import StepOptimizer
from encore.training.run_folder import EvaluationRecord, LogRecord, StepRecord
from encore.training.training_options import OPERATION_SHARES, TrainingConfig

_EVALUATIONS_PER_EPOCH = 4


def run_steps(
    training: Training,
    optimizer: StepOptimizer,
    *,
    start_step: int,
    on_record: Callable[[LogRecord], None],
    save: Callable[[int, EvaluationRecord | None], object],
) -> HeldOutScores | None:
    """Take the steps from ``start_step + 1`` to the last, with evaluations and checkpoints.

    Both also follow the last step. By default a checkpoint is written after each evaluation, so
    that it has metrics.

    Args:
        training: Model, examples and settings. The model is trained in place.
        optimizer: Optimizer with its state after ``start_step``.
        start_step: Number of steps already done.
        on_record: Function that receives the metrics of each step and each evaluation.
        save: Function that writes the checkpoint of a step, with the step's evaluation or None.

    Returns:
        The scores of the held-out pairs after the last step; None if no step was taken or nothing
        is held out.

    Raises:
        TrainingDivergedError: A loss is not finite (that step changed no weight), or a gradient is
            not finite. Nothing is saved.
        InputError: The layout does not fit the model.
    """
    model, config, last_step = training.model, training.config, training.num_steps
    steps_per_epoch = training.steps_per_epoch
    evaluate_every = config.evaluate_every or math.ceil(steps_per_epoch / _EVALUATIONS_PER_EPOCH)
    checkpoint_every = config.checkpoint_every or evaluate_every
    peak, epoch_rows = device_peak(training), list[NDArray[np.int64]]()
    model.train()
    held_out: HeldOutScores | None = None
    for step in range(start_step + 1, last_step + 1):
        epoch, step_of_epoch = divmod(step - 1, steps_per_epoch)
        if step_of_epoch == 0 or not epoch_rows:
            epoch_rows = training.rows_of_epoch(epoch)
        on_record(_take_step(training, optimizer, step, epoch_rows[step_of_epoch], peak=peak))
        evaluation, is_last = None, step == last_step
        if is_last or step % evaluate_every == 0:
            evaluation, held_out = evaluate(training, step=step) or (None, None)
        if evaluation is not None:
            on_record(evaluation)
        if is_last or step % checkpoint_every == 0:
            save(step, evaluation)
    return held_out


def learning_rate_at(step: int, *, config: TrainingConfig, num_steps: int) -> float:
    """Return the learning rate of a step: linear warm-up to the peak, then linear decay.

    No step has a rate of 0. With w warm-up steps, step 1 has 1/w of the peak and step w has all of
    it. The last of n steps has 1/(n - w). A run shorter than its warm-up never reaches the peak.

    Args:
        step: Number of the step, from 1 to ``num_steps``.
        config: Settings with the peak and the warm-up.
        num_steps: Number of steps of the whole run.
    """
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    num_remaining = num_steps - step + 1
    return config.learning_rate * num_remaining / (num_steps - config.warmup_steps)


def _take_step(
    training: Training,
    optimizer: StepOptimizer,
    step: int,
    row_P: NDArray[np.int64],
    *,
    peak: tuple[BackboneShape, float] | None,
) -> StepRecord:
    """Compute the gradients of a step's pairs, check them, update the weights, return metrics."""
    began = time.monotonic()
    device, rows = training.model.device, plan_rows(training, row_P)
    # No loss reaches a frozen head 0, which is in rank 0's shard, but weight decay would.
    is_frozen = training.config.preference_head == "frozen" and training.ranks.is_rank_zero
    frozen_1D = local_part(training.model.heads.weight).detach()[:1].clone() if is_frozen else None
    rate = learning_rate_at(step, config=training.config, num_steps=training.num_steps)
    mean_loss, num_computed = _backward(
        training,
        rows,
        step=step,
        before_last=lambda: optimizer.before_last_backward(step=step, learning_rate=rate),
    )
    try:
        grad_norm = optimizer.finish()
    except NonFiniteGradientError as error:
        raise TrainingDivergedError(
            problem=f"the gradient of {error.names[0]} is not finite",
            step=step,
            pair_ids=training.examples.pair_id_P[row_P].tolist(),
        ) from error
    if frozen_1D is not None:
        local_part(training.model.heads.weight).detach()[:1] = frozen_1D
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # or the step's last work would be timed with the next step
    seconds = time.monotonic() - began
    lengths = [len(sequence) for sequence in rows.sequences]
    return StepRecord(
        step=step,
        epoch=step / training.steps_per_epoch,
        loss=mean_loss,
        learning_rate=rate,
        num_tokens=sum(lengths),
        num_computed=num_computed,
        seconds=seconds,
        tokens_per_second=sum(lengths) / seconds,
        mfu=_mfu(peak, lengths, num_computed=num_computed, seconds=seconds),
        peak_memory_bytes=peak_memory_bytes(device),
        grad_norm=grad_norm,
        num_pairs=len(row_P),
    )


def _mfu(
    peak: tuple[BackboneShape, float] | None,
    lengths: Sequence[int],
    *,
    num_computed: int,
    seconds: float,
) -> float | None:
    """Return the share of the device's peak that useful arithmetic reached; None if not known."""
    if peak is None:
        return None
    shape, flops_per_second = peak
    return useful_flops(shape, lengths, num_computed=num_computed) / seconds / flops_per_second


def _backward(
    training: Training, rows: PlannedRows, *, step: int, before_last: Callable[[], None]
) -> tuple[float, int]:
    """Run all passes of a step; return its loss and computed positions over all processes.

    ``before_last`` is called before the last backward pass, which may already change weights.
    """
    config, ranks = training.config, training.ranks
    divisor, rating_factor = loss_scale(rows.target_NR, config=config)
    # Loss, scored sequences and loss terms of each pass.
    passes: list[tuple[Tensor, NDArray[np.int64], Tensor]] = []
    num_computed, totals = 0, (0.0, 0)
    for index, plan in enumerate(rows.plans):
        # All processes have the same number of passes, each with its own dropout masks.
        _seed_dropout(config.seed, step=step, microbatch=ranks.rank * len(rows.plans) + index)
        sequences, score_NR, num_positions = score_microbatch(training, rows, plan)
        num_computed += num_positions
        target_NR = torch.from_numpy(rows.target_NR[sequences])
        target_NR = target_NR.to(training.model.device, non_blocking=True)
        term_T = loss_terms(
            score_NR, target_NR, objective=config.objective, rating_factor=rating_factor
        )
        # Every pair has a rating, so a step has terms. 1 avoids a division by 0 all the same.
        loss = term_T.sum() * plan.weight / max(1, divisor)
        passes.append((loss.detach(), sequences, term_T.detach()))
        if index == len(rows.plans) - 1:
            totals = _sum_passes(training, rows, passes, num_computed, step=step)
            before_last()
        loss.backward()
    return totals


def _sum_passes(
    training: Training,
    rows: PlannedRows,
    passes: Sequence[tuple[Tensor, NDArray[np.int64], Tensor]],
    num_computed: int,
    *,
    step: int,
) -> tuple[float, int]:
    """Return the step's loss and computed positions over all passes and processes.

    This is the only place in a step that waits for the device.

    Raises:
        TrainingDivergedError: The loss is not finite.
    """
    loss_M = torch.stack([loss for loss, _, _ in passes]).double().cpu().numpy()
    sums = torch.tensor([float(loss_M.sum()), num_computed], dtype=torch.float64)
    mean_loss, num_computed_by_all = training.ranks.sum(sums).tolist()
    if math.isfinite(mean_loss):
        return mean_loss, int(num_computed_by_all)
    training.model.zero_grad(set_to_none=True)
    # Find the pairs with a term that is not finite, in any process.
    is_bad_P = np.zeros(len(rows.row_P), dtype=np.int64)
    for _, sequences, term_T in passes:
        # A term belongs to one response, or to two neighbouring responses of a pair.
        bad_sequences = sequences.reshape(len(term_T), -1)[~torch.isfinite(term_T).cpu().numpy()]
        is_bad_P[bad_sequences // 2] = 1
    is_bad = training.ranks.sum(torch.from_numpy(is_bad_P)).numpy() > 0
    raise TrainingDivergedError(
        problem=f"the loss is {mean_loss}",
        step=step,
        pair_ids=training.examples.pair_id_P[rows.row_P[is_bad]].tolist(),
    )


def _seed_dropout(seed: int, *, step: int, microbatch: int) -> None:
    """Set torch's random state from seed, step and microbatch, so that it need not be saved."""
    digest = hashlib.blake2b(f"{seed}:{step}:{microbatch}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "big") >> 1)


def device_peak(training: Training) -> tuple[BackboneShape, float] | None:
    """Return the trunk's shape and the peak operations per second of all devices together.

    The peak is in operations of full training: for LoRA it is higher, because LoRA needs fewer.
    None if the device or the kind of model is unknown.
    """
    if training.model.device.type != "cuda":
        return None
    trunk, name = training.model.trunk, torch.cuda.get_device_name(training.model.device)
    peak = peak_flops(name, weight_bytes=next(trunk.parameters()).element_size())
    with contextlib.suppress(InputError):
        shape = shape_from_config(trunk.config.to_dict(), name="trunk")
        if peak is not None:
            return shape, peak * training.ranks.count / OPERATION_SHARES[training.config.method]
    return None


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory of this process: of tensors on its GPU, else its resident memory."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
