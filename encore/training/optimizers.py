"""AdamW for the training loop: one update each step, resumed from tensors alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from encore.core.errors import InputError
from encore.training.distributed import copy_to_shard, local_part, shard_group
from encore.training.gradient_norms import clip, gradient_norm, total_norm
from encore.training.stochastic_adamw import StochasticAdamW

if TYPE_CHECKING:
    from encore.training.training_options import TrainingConfig


class StepOptimizer(Protocol):
    """An optimizer that updates a model's trainable parameters once a step.

    A step has any number of backward passes. Call `before_last_backward` before the last of them,
    and `finish` after it. To resume, the parameters, `state` and the number of the next step are
    enough.
    """

    def before_last_backward(self, *, step: int, learning_rate: float) -> None:
        """Prepare the update: after the next backward pass, the step's gradients are complete."""

    def finish(self) -> float | None:
        """Apply the remaining updates, clear the gradients, and return the norm of the gradient.

        Raises:
            NonFiniteGradientError: A gradient contains NaN or infinity.
        """

    def state(self) -> dict[str, Tensor]:
        """Return the optimizer's tensors by name, not copies: `restore_tensors` writes to them."""


def make_optimizer(model: nn.Module, config: TrainingConfig) -> StepOptimizer:
    """Return the optimizer of a config for the model's trainable parameters.

    ``auto`` is stochastically rounded AdamW if any parameter is bfloat16, else plain AdamW.
    """
    parameters = trainable_parameters(model)
    is_stochastic = config.optimizer == "adamw-stochastic" or (
        config.optimizer == "auto" and any(p.dtype == torch.bfloat16 for p in parameters.values())
    )
    return (StochasticAdamW if is_stochastic else PlainAdamW)(parameters, config)


class PlainAdamW:
    """``torch.optim.AdamW`` as a `StepOptimizer`, with all updates after the backward pass.

    If a gradient is not finite, no parameter changes. States have the number format of the
    parameter. With bfloat16 weights this optimizer stalls: see `encore.training.stochastic_adamw`.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], config: TrainingConfig) -> None:
        self._parameters = dict(parameters)
        self._config = config
        self._optimizer = torch.optim.AdamW(
            list(self._parameters.values()),
            betas=config.adam_betas,
            eps=config.adam_epsilon,
            weight_decay=config.weight_decay,
            fused=True,
        )
        for parameter in self._parameters.values():
            self._optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
            }

    def before_last_backward(
        self,
        *,
        step: int,  # noqa: ARG002 -- required by the protocol
        learning_rate: float,
    ) -> None:
        """Set the learning rate of the step; see `StepOptimizer.before_last_backward`."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate

    def finish(self) -> float:
        """Clip, check and apply the step's gradients; see `StepOptimizer.finish`."""
        gradients = {
            name: local_part(parameter.grad)
            for name, parameter in self._parameters.items()
            if parameter.grad is not None
        }
        try:
            norms = {name: gradient_norm(gradient) for name, gradient in gradients.items()}
            norm = total_norm(norms, group=shard_group(self._parameters.values()))
            if self._config.clip_gradient is not None:
                for name, gradient in gradients.items():
                    clip(gradient, norms[name], self._config.clip_gradient)
            self._optimizer.step()
        finally:
            self._optimizer.zero_grad(set_to_none=True)
        return norm

    def state(self) -> dict[str, Tensor]:
        """Return torch's state of every parameter."""
        return {
            f"{name}/{key}": tensor
            for name, parameter in self._parameters.items()
            for key, tensor in self._optimizer.state[parameter].items()
        }


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient by name; a tied one has its first name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def restore_tensors(
    target: Mapping[str, Tensor], source: Mapping[str, Tensor], *, label: str
) -> None:
    """Copy whole tensors of a checkpoint into the tensors of the same names.

    Args:
        target: Tensors to write, which may be sharded.
        source: Whole tensors of the checkpoint.
        label: What the tensors are and where they come from, for the message.

    Raises:
        InputError: Names, shapes or number formats differ. Nothing is copied then.
    """

    def describe(tensor: Tensor | None) -> str:
        if tensor is None:
            return "missing"
        return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"

    for name in sorted({*target, *source}):
        in_run, in_checkpoint = describe(target.get(name)), describe(source.get(name))
        if in_run != in_checkpoint:
            raise InputError(
                f"{label} {name}: {in_checkpoint} in the checkpoint, {in_run} in this run; "
                "expected a checkpoint of the same model and optimizer; delete the run's folder to "
                "train anew"
            )
    for name, tensor in target.items():
        copy_to_shard(tensor, source[name])
