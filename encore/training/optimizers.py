"""AdamW for the training loop: one update each step, resumed from tensors alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, distributed, nn

from encore.core.errors import EncoreError, InputError
from encore.training.ranks import copy_to_shard, local_part, shard_group

if TYPE_CHECKING:
    from encore.training.training_config import TrainingConfig


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


class NonFiniteGradientError(EncoreError):
    """Gradients contain NaN or infinity; `names` are the parameters of these gradients."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__(f"gradient of {', '.join(names[:3])}: NaN or infinity")


def make_optimizer(model: nn.Module, config: TrainingConfig) -> StepOptimizer:
    """Return the optimizer of a config for the model's trainable parameters.

    ``auto`` is stochastically rounded AdamW if any parameter is bfloat16, else plain AdamW.
    """
    from encore.training.stochastic_adamw import StochasticAdamW

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


def gradient_norm(gradient: Tensor) -> Tensor:
    """Return the norm of one parameter's gradient, as float32 on the gradient's device."""
    return torch.linalg.vector_norm(gradient, dtype=torch.float32)


def clip(gradient: Tensor, norm: Tensor, max_norm: float) -> None:
    """Scale one parameter's gradient down in place, to a norm of at most ``max_norm``.

    TRL's trainers (transformers' ``max_grad_norm``, default 1.0) clip the norm of the whole
    gradient. That norm is known only after the backward pass; the norm of one parameter's gradient
    is known during it.
    """
    gradient.mul_((max_norm / (norm.to(gradient.device) + 1e-6)).clamp(max=1.0))


def total_norm(norms: Mapping[str, Tensor], *, group: Any = None) -> float:
    """Return the norm of the whole gradient from the norms of its parts; 0 without any part.

    Args:
        norms: Norm of each parameter's gradient, or of this process's shard of it.
        group: Processes that hold the shards; all of them get the same result. None: no shards.

    Raises:
        NonFiniteGradientError: The norm of a part is not finite.
    """
    if not norms:
        return 0.0
    if group is not None:  # sorted: gradients arrive in a different order in each process
        names = sorted(norms)
        squares = torch.stack([norms[name] for name in names]).double().square()
        distributed.all_reduce(squares, group=group)
        norms = dict(zip(names, squares.sqrt(), strict=True))
    # One transfer from the device for all parameters.
    values = torch.stack(list(norms.values())).double()
    total = float(values.norm())
    is_finite = torch.isfinite(values)
    if not is_finite.all():
        names_and_checks = zip(norms, is_finite.tolist(), strict=True)
        raise NonFiniteGradientError([name for name, finite in names_and_checks if not finite])
    return total


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
