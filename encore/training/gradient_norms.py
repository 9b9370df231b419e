"""Norms of gradients: of one parameter, of the whole gradient, and clipping by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from encore.core.errors import EncoreError


class NonFiniteGradientError(EncoreError):
    """Gradients contain NaN or infinity; `names` are the parameters of these gradients."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__(f"gradient of {', '.join(names[:3])}: NaN or infinity")


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
