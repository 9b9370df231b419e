"""Optimizers of the training loop: one update a step, resumable from tensors alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from encore.training.optimizers.adamw import PlainAdamW
from encore.training.optimizers.eight_bit import EightBitAdamW, find_library
from encore.training.optimizers.step_optimizer import (
    AdamSettings,
    NonFiniteGradientError,
    StepOptimizer,
    trainable_parameters,
)
from encore.training.optimizers.stochastic import StochasticAdamW

if TYPE_CHECKING:
    from encore.training.config import TrainingConfig

__all__ = ["NonFiniteGradientError", "StepOptimizer", "make_optimizer"]


def make_optimizer(model: nn.Module, config: TrainingConfig) -> StepOptimizer:
    """The optimizer that a training config asks for, over the model's trainable parameters.

    ``auto`` is stochastically rounded AdamW where any of them is bfloat16, else plain AdamW.

    Raises:
        InputError: nothing to train; 8-bit states without a library for them; parameters in a
            number format that the optimizer does not know.
    """
    parameters = trainable_parameters(model)
    beta_1, beta_2 = config.adam_betas
    settings = AdamSettings(
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=config.adam_epsilon,
        weight_decay=config.weight_decay,
    )
    name = config.optimizer
    if name == "auto":
        is_bfloat16 = any(p.dtype == torch.bfloat16 for p in parameters.values())
        name = "adamw-stochastic" if is_bfloat16 else "adamw"
    if name == "adamw":
        return PlainAdamW(parameters, settings=settings)
    if name == "adamw-stochastic":
        return StochasticAdamW(parameters, settings=settings, seed=config.seed)
    device = next(iter(parameters.values())).device.type
    return EightBitAdamW(
        parameters, settings=settings, seed=config.seed, library=find_library(device=device)
    )
