"""Which step has which learning rate, and after which steps a run evaluates and saves."""

from __future__ import annotations

import math

from encore.training.config import TrainingConfig

_EVALUATIONS_PER_EPOCH = 4


def steps_per_epoch(num_pairs: int, *, batch_pairs: int) -> int:
    """Optimizer steps of one pass: every pair is in exactly one, none is dropped."""
    return math.ceil(num_pairs / batch_pairs)


def num_steps_of(num_pairs: int, config: TrainingConfig) -> int:
    """Optimizer steps of a whole run over so many training pairs."""
    num_steps = config.epochs * steps_per_epoch(num_pairs, batch_pairs=config.batch_pairs)
    return num_steps if config.max_steps is None else min(num_steps, config.max_steps)


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


def is_evaluation_due(
    step: int, *, config: TrainingConfig, num_steps: int, steps_per_epoch: int
) -> bool:
    """Whether the model is evaluated after a step; always after the last one."""
    every = _evaluation_every(config, steps_per_epoch)
    return step == num_steps or step % every == 0


def is_checkpoint_due(
    step: int, *, config: TrainingConfig, num_steps: int, steps_per_epoch: int
) -> bool:
    """Whether a checkpoint is written after a step; always after the last one.

    By default where the model is evaluated, so that every checkpoint has its figures.
    """
    every = config.checkpoint_every or _evaluation_every(config, steps_per_epoch)
    return step == num_steps or step % every == 0


def _evaluation_every(config: TrainingConfig, steps_per_epoch: int) -> int:
    return config.evaluate_every or math.ceil(steps_per_epoch / _EVALUATIONS_PER_EPOCH)
