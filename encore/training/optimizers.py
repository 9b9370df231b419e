"""AdamW for the training loop: one update a step, resumable from tensors alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, distributed, nn

from encore.core.errors import EncoreError, InputError
from encore.training.ranks import local_part, put_whole, shard_group

if TYPE_CHECKING:
    from encore.training.training_config import TrainingConfig


class StepOptimizer(Protocol):
    """One update of a model's trainable parameters a step.

    A step is: any number of backward passes, `arm` before the last of them, `finish` after it.
    Resuming needs the parameters, `state` and the number of the next step, nothing else.
    """

    def arm(self, *, step: int, learning_rate: float) -> None:
        """The next backward pass is the last of this step: gradients are complete after it."""

    def finish(self) -> float | None:
        """Apply the updates that are left, clear the gradients, return the gradient's norm.

        Raises:
            NonFiniteGradientError: A gradient holds NaN or infinity.
        """

    def state(self) -> dict[str, Tensor]:
        """The optimizer's own tensors by name: live, so that `copy_whole` can restore them."""


class NonFiniteGradientError(EncoreError):
    """Gradients hold NaN or infinity; `names` are the parameters whose gradients do."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__(f"gradient of {', '.join(names[:3])}: NaN or infinity")


def make_optimizer(model: nn.Module, config: TrainingConfig) -> StepOptimizer:
    """The optimizer of a training config, over the model's trainable parameters.

    ``auto`` is stochastically rounded AdamW where any of them is bfloat16, else plain AdamW.
    """
    from encore.training.stochastic_adamw import StochasticAdamW

    parameters = trainable_parameters(model)
    is_stochastic = config.optimizer == "adamw-stochastic" or (
        config.optimizer == "auto" and any(p.dtype == torch.bfloat16 for p in parameters.values())
    )
    return (StochasticAdamW if is_stochastic else PlainAdamW)(parameters, config)


class PlainAdamW:
    """``torch.optim.AdamW`` behind `StepOptimizer`: every update after the backward pass.

    Parameters are never touched when a gradient is not finite. States have the parameter's number
    format: for bfloat16 weights this optimizer stalls, see `encore.training.stochastic_adamw`.
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

    def arm(self, *, step: int, learning_rate: float) -> None:  # noqa: ARG002 -- of the protocol
        """See `StepOptimizer.arm`."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate

    def finish(self) -> float:
        """See `StepOptimizer.finish`."""
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
        """Torch's own state of every parameter."""
        return {
            f"{name}/{key}": tensor
            for name, parameter in self._parameters.items()
            for key, tensor in self._optimizer.state[parameter].items()
        }


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that require a gradient by name, a tied one once, under its first name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def gradient_norm(gradient: Tensor) -> Tensor:
    """The norm of one parameter's gradient, float32, on its device."""
    return torch.linalg.vector_norm(gradient, dtype=torch.float32)


def clip(gradient: Tensor, norm: Tensor, most: float) -> None:
    """Scale a gradient down in place so that ``norm`` becomes ``most`` at the most.

    TRL's trainers (transformers' ``max_grad_norm``, 1.0 by default) clip the norm of the whole
    gradient, which exists only after the backward pass; a parameter's own norm exists within it.
    """
    gradient.mul_((most / (norm.to(gradient.device) + 1e-6)).clamp(max=1.0))


def total_norm(norms: Mapping[str, Tensor], *, group: Any = None) -> float:
    """The norm of the whole gradient from the norms of its parts; 0 where there is none.

    Args:
        norms: By parameter; of this process's shard where parameters are sharded.
        group: The processes that hold the shards; all of them get the same answer.

    Raises:
        NonFiniteGradientError: A part is not finite.
    """
    if not norms:
        return 0.0
    if group is not None:  # in an order of their own, whatever that of their arrival was
        names = sorted(norms)
        squares = torch.stack([norms[name] for name in names]).double().square()
        distributed.all_reduce(squares, group=group)
        norms = dict(zip(names, squares.sqrt(), strict=True))
    # One transfer from the device for all parameters.
    values = torch.stack(list(norms.values())).double()
    total = float(values.norm())
    is_finite = torch.isfinite(values)
    if not is_finite.all():
        named = zip(norms, is_finite.tolist(), strict=True)
        raise NonFiniteGradientError([name for name, finite in named if not finite])
    return total


def copy_whole(target: Mapping[str, Tensor], source: Mapping[str, Tensor], *, what: str) -> None:
    """Copy whole tensors of a checkpoint into those of the same names, which may be sharded.

    Raises:
        InputError: Other names, shapes or number formats, with the first difference; ``what`` says
            of which tensors. Nothing was copied.
    """

    def described(tensor: Tensor | None) -> str:
        dtype = "" if tensor is None else str(tensor.dtype).removeprefix("torch.")
        return "missing" if tensor is None else f"{dtype}{list(tensor.shape)}"

    for name in sorted({*target, *source}):
        here, there = described(target.get(name)), described(source.get(name))
        if here != there:
            raise InputError(
                f"{what} {name}: {there} in the checkpoint, {here} in this run; expected a "
                "checkpoint of the same model and optimizer; delete the run's folder to train anew"
            )
    for name, tensor in target.items():
        put_whole(tensor, source[name])
