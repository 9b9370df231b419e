"""The training loop: every step is a function of seed, step number, weights and optimizer state.

Nothing else is carried from step to step, no sampler and no random state, so a run that goes on
from a checkpoint takes the very steps it would have taken.

Suffixes: P pairs, N sequences, M microbatches, R heads.
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
from encore.model.gpus import find_gpu
from encore.training.batches import PlannedRows, Training, plan_rows, score_microbatch
from encore.training.evaluation import TrainingDivergedError, evaluate, loss_terms, num_terms
from encore.training.optimizers import NonFiniteGradientError, StepOptimizer
from encore.training.run_folder import EvaluationRecord, Record, StepRecord
from encore.training.training_config import TrainingConfig

_EVALUATIONS_PER_EPOCH = 4
#: Low-rank adapters: frozen weights need gradients of activations (2 a weight and token) but none
#: of their own, so 4 of full training's 6 operations remain.
_LORA_SHARE = 4 / 6


def run_steps(
    training: Training,
    optimizer: StepOptimizer,
    *,
    start_step: int,
    on_record: Callable[[Record], None],
    save: Callable[[int, EvaluationRecord | None], object],
) -> None:
    """Take the steps from ``start_step + 1`` to the last, evaluating and saving when it is due.

    Both also come after the last step. By default a checkpoint is written where the model is
    evaluated, so that it has its figures.

    Args:
        training: The model is trained in place.
        optimizer: With the state that belongs to the step to start from.
        start_step: Steps already done.
        on_record: Called after each step and each evaluation.
        save: Writes a checkpoint of a step, given the evaluation of the same step if there is one.

    Raises:
        TrainingDivergedError: A loss is not finite (no weight was changed by that step), or a
            gradient is not. Nothing is saved.
        InputError: A layout that does not fit the model.
    """
    model, config, last_step = training.model, training.config, training.num_steps
    per_epoch = training.steps_per_epoch
    evaluate_every = config.evaluate_every or math.ceil(per_epoch / _EVALUATIONS_PER_EPOCH)
    checkpoint_every = config.checkpoint_every or evaluate_every
    peak, epoch_rows = device_peak(training), list[NDArray[np.int64]]()
    model.train()
    for step in range(start_step + 1, last_step + 1):
        epoch, place = divmod(step - 1, per_epoch)
        if place == 0 or not epoch_rows:
            epoch_rows = training.rows_of_epoch(epoch)
        on_record(_take_step(training, optimizer, step, epoch_rows[place], peak=peak))
        evaluation, is_last = None, step == last_step
        if is_last or step % evaluate_every == 0:
            evaluation = evaluate(training, step=step)
        if evaluation is not None:
            on_record(evaluation)
        if is_last or step % checkpoint_every == 0:
            save(step, evaluation)


def learning_rate_at(step: int, *, config: TrainingConfig, num_steps: int) -> float:
    """The rate of a step: linear warm-up to the peak, then linear decay towards 0.

    No step is wasted on a rate of 0: with w warm-up steps the first has 1/w of the peak and step w
    all of it, and the last one of n steps has 1/(n - w). A run shorter than its warm-up never
    reaches the peak.

    Args:
        step: From 1 to ``num_steps``.
        config: Says peak and warm-up.
        num_steps: Of the whole run.
    """
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    left = num_steps - step + 1
    return config.learning_rate * left / (num_steps - config.warmup_steps)


def _take_step(
    training: Training,
    optimizer: StepOptimizer,
    step: int,
    row_P: NDArray[np.int64],
    *,
    peak: tuple[BackboneShape, float] | None,
) -> StepRecord:
    """Forward and backward passes over some pairs, the finite check, the update."""
    began = time.monotonic()
    device, rows = training.model.device, plan_rows(training, row_P)
    rate = learning_rate_at(step, config=training.config, num_steps=training.num_steps)
    mean_loss, num_computed = _backward(
        training, rows, step=step, arm=lambda: optimizer.arm(step=step, learning_rate=rate)
    )
    try:
        grad_norm = optimizer.finish()
    except NonFiniteGradientError as error:
        raise TrainingDivergedError(
            what=f"the gradient of {error.names[0]} is not finite",
            step=step,
            pair_ids=training.examples.pair_id_P[row_P].tolist(),
        ) from error
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # or the step's last work would be timed as another's
    seconds = time.monotonic() - began
    lengths = [len(sequence) for sequence in rows.sequences]
    mfu = None
    if peak is not None:
        shape, flops_per_second = peak
        work = useful_flops(shape, lengths, num_computed=num_computed)
        mfu = work / seconds / flops_per_second
    return StepRecord(
        step=step,
        epoch=step / training.steps_per_epoch,
        loss=mean_loss,
        learning_rate=rate,
        num_tokens=sum(lengths),
        num_computed=num_computed,
        seconds=seconds,
        tokens_per_second=sum(lengths) / seconds,
        mfu=mfu,
        peak_memory_bytes=peak_memory_bytes(device),
        grad_norm=grad_norm,
        num_pairs=len(row_P),
    )


def _backward(
    training: Training, rows: PlannedRows, *, step: int, arm: Callable[[], None]
) -> tuple[float, int]:
    """All passes of a step; its loss and computed token positions over all processes."""
    config, ranks = training.config, training.ranks
    # Every pair has a rating somewhere, so a step has terms; 1 keeps an empty one harmless.
    terms = max(1, num_terms(rows.target_NR, objective=config.objective))
    # Of each pass: its loss, which sequences it scored, and the terms of the loss.
    passes: list[tuple[Tensor, NDArray[np.int64], Tensor]] = []
    num_computed, found = 0, (0.0, 0)
    for index, plan in enumerate(rows.plans):
        # All processes have as many passes, each with dropout masks of its own.
        _seed_dropout(config.seed, step=step, microbatch=ranks.rank * len(rows.plans) + index)
        sequences, score_NR, num_positions = score_microbatch(training, rows, plan)
        num_computed += num_positions
        target_NR = torch.from_numpy(rows.target_NR[sequences])
        target_NR = target_NR.to(training.model.device, non_blocking=True)
        term_T = loss_terms(score_NR, target_NR, objective=config.objective)
        loss = term_T.sum() * plan.weight / terms
        passes.append((loss.detach(), sequences, term_T.detach()))
        if index == len(rows.plans) - 1:
            # From here on weights may change, in the backward pass itself.
            found = _finite_sum(training, rows, passes, num_computed, step=step)
            arm()
        loss.backward()
    return found


def _finite_sum(
    training: Training,
    rows: PlannedRows,
    passes: Sequence[tuple[Tensor, NDArray[np.int64], Tensor]],
    num_computed: int,
    *,
    step: int,
) -> tuple[float, int]:
    """The step's loss and computed positions: the one place where the device is waited for."""
    loss_M = torch.stack([loss for loss, _, _ in passes]).double().cpu().numpy()
    sums = torch.tensor([float(loss_M.sum()), num_computed], dtype=torch.float64)
    mean_loss, num_computed_by_all = training.ranks.summed(sums).tolist()
    if math.isfinite(mean_loss):
        return mean_loss, int(num_computed_by_all)
    training.model.zero_grad(set_to_none=True)
    is_bad_P = np.zeros(len(rows.row_P), dtype=np.int64)
    for _, sequences, term_T in passes:
        # One term a response or, of a pair's two neighbours, a pair.
        own = sequences.reshape(len(term_T), -1)[~torch.isfinite(term_T).cpu().numpy()]
        is_bad_P[own // 2] = 1
    is_bad = training.ranks.summed(torch.from_numpy(is_bad_P)).numpy() > 0
    raise TrainingDivergedError(
        what=f"the loss is {mean_loss}",
        step=step,
        pair_ids=training.examples.pair_id_P[rows.row_P[is_bad]].tolist(),
    )


def _seed_dropout(seed: int, *, step: int, microbatch: int) -> None:
    """Set torch's random state from the step alone, so that it need not be saved."""
    digest = hashlib.blake2b(f"{seed}:{step}:{microbatch}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "big") >> 1)


def device_peak(training: Training) -> tuple[BackboneShape, float] | None:
    """The trunk's shape and what the devices can do, operations of full training a second.

    None where the device or the kind of model is unknown.
    """
    if training.model.device.type != "cuda":
        return None
    trunk = training.model.trunk
    with contextlib.suppress(InputError):
        gpu = find_gpu(torch.cuda.get_device_name(training.model.device))
        shape = shape_from_config(trunk.config.to_dict(), name="trunk")
        peak = gpu.peak_flops(weight_bytes=next(trunk.parameters()).element_size())
        share = _LORA_SHARE if training.config.method == "lora" else 1.0
        return shape, peak * training.ranks.count / share
    return None


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory of this process so far: of tensors on its GPU, else what was resident."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
