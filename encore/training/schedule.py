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


def intervals(config: TrainingConfig, *, steps_per_epoch: int) -> tuple[int, int]:
    """Steps between evaluations and between checkpoints; both also come after the last step.

    By default a checkpoint is written where the model is evaluated, so that it has its figures.
    """
    evaluate_every = config.evaluate_every or math.ceil(steps_per_epoch / _EVALUATIONS_PER_EPOCH)
    return evaluate_every, config.checkpoint_every or evaluate_every
