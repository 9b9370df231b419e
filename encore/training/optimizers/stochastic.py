"""AdamW in bfloat16 that does not stall: weights and both moments are rounded stochastically.

Rounding to nearest loses every update smaller than half the distance of two bfloat16 numbers: at a
learning rate of 2e-5 about 70 % of weights drawn from N(0, 0.02) would never move. The arithmetic
is float32; only what is stored is bfloat16: 6 bytes a parameter, and no copy in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from encore.model.fusing import has_compiler
from encore.training.optimizers.in_backward import InBackwardOptimizer
from encore.training.optimizers.rounding import (
    further_bits,
    high_bits,
    random_bits,
    round_stochastically,
    stream_key,
)
from encore.training.optimizers.step_optimizer import AdamSettings, copy_state
from encore.training.shards import first_element, is_sharded, local_part

#: Elements processed at once. On a CPU the float32 intermediates then stay in the cache; on a GPU
#: one fused kernel has none, and the pieces only keep their numbers within a kernel's index range.
_CHUNK = {"cpu": 2**16, "cuda": 2**25}
_SMALLEST_CHUNK = 2**16
_NUM_UPDATES = "num_updates"


class StochasticAdamW(InBackwardOptimizer):
    """AdamW with bfloat16 states for bfloat16 parameters, float32 states for float32 ones.

    Args:
        parameters: By name; their order numbers them for the random bits.
        settings: AdamW's constants.
        seed: Of the random bits.
        is_in_backward: False leaves all updates to `finish`.
        chunk_elements: Elements processed at once; changes speed and memory, no result.
        is_compiled: Fuse an update into one kernel by torch.compile; default: on CUDA, where there
            is a C compiler.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        settings: AdamSettings,
        seed: int,
        is_in_backward: bool = True,
        chunk_elements: int | None = None,
        is_compiled: bool | None = None,
    ) -> None:
        super().__init__(parameters, is_in_backward=is_in_backward)
        self._settings = settings
        self._seed = seed
        self._device = next(iter(self._parameters.values())).device
        self._chunk = chunk_elements or _CHUNK.get(self._device.type, _SMALLEST_CHUNK)
        self._kernels = _kernels(
            is_compiled=_can_compile(self._device) if is_compiled is None else is_compiled
        )
        self._moments = {
            name: (_zeros(parameter), _zeros(parameter))
            for name, parameter in self._parameters.items()
        }
        self._num_updates = torch.zeros((), dtype=torch.int64)
        largest = max(parameter.numel() for parameter in self._parameters.values())
        # The first element of every piece, on the device: a kernel takes it without a transfer.
        starts = torch.arange(0, largest, self._chunk, device=self._device).to(torch.int32)
        # A shard's elements have the numbers that they have in the whole parameter: the same bits.
        self._starts = {
            name: starts + first_element(parameter) if is_sharded(parameter) else starts
            for name, parameter in self._parameters.items()
        }
        self._keys: Mapping[str, Tensor] = {}
        self._coefficients = torch.zeros(0)

    def state(self) -> dict[str, Tensor]:
        """Both moments of every parameter and the number of updates so far."""
        tensors = {_NUM_UPDATES: self._num_updates}
        for name, (first, second) in self._moments.items():
            tensors[f"{name}/first_moment"] = first
            tensors[f"{name}/second_moment"] = second
        return tensors

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `StepOptimizer.load_state`."""
        copy_state(self.state(), state)

    def _begin_step(self, *, step: int, learning_rate: float) -> None:
        self._num_updates += 1
        self._coefficients = torch.tensor(
            _coefficients(self._settings, int(self._num_updates), learning_rate),
            dtype=torch.float32,
            device=self._device,
        )
        keys = [
            stream_key(seed=self._seed, step=step, parameter=number)
            for number in range(len(self._parameters))
        ]
        key_table = torch.tensor(keys, dtype=torch.int32, device=self._device)
        self._keys = dict(zip(self._parameters, key_table, strict=True))

    def _update(self, name: str, parameter: Tensor, gradient: Tensor) -> None:
        moments = (local_part(moment).view(-1) for moment in self._moments[name])
        flat = [parameter.detach().view(-1), *moments, gradient.reshape(-1)]
        kernel = self._kernels[parameter.dtype]
        for number, start in enumerate(range(0, parameter.numel(), self._chunk)):
            pieces = [tensor[start : start + self._chunk] for tensor in flat]
            kernel(*pieces, self._coefficients, self._starts[name][number], self._keys[name])


def _can_compile(device: torch.device) -> bool:
    return device.type == "cuda" and has_compiler()


def _zeros(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter, requires_grad=False)


def _coefficients(settings: AdamSettings, num_updates: int, learning_rate: float) -> list[float]:
    """What an update multiplies with, in float64 until the end: see `_adamw` for the order."""
    return [
        1 - settings.beta_1,
        1 - settings.beta_2,
        learning_rate / (1 - settings.beta_1**num_updates),
        (1 - settings.beta_2**num_updates) ** -0.5,
        settings.epsilon,
        1 - learning_rate * settings.weight_decay,
    ]


@functools.cache
def _kernels(*, is_compiled: bool) -> dict[torch.dtype, Callable[..., None]]:
    kernels: dict[torch.dtype, Callable[..., None]] = {
        torch.bfloat16: _update_bfloat16,
        torch.float32: _update_float32,
    }
    if not is_compiled:
        return kernels
    # dynamic: one kernel for all sizes.
    return {
        dtype: torch.compile(kernel, dynamic=True, fullgraph=True)
        for dtype, kernel in kernels.items()
    }


def _adamw(
    weight: Tensor, first: Tensor, second: Tensor, gradient: Tensor, coefficients: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """New weights and moments. All float32, with weight decay decoupled from the gradient."""
    first = first + (gradient - first) * coefficients[0]
    second = second + (gradient * gradient - second) * coefficients[1]
    denominator = second.sqrt() * coefficients[3] + coefficients[4]
    return weight * coefficients[5] - coefficients[2] * (first / denominator), first, second


def _update_float32(
    weight: Tensor,
    first: Tensor,
    second: Tensor,
    gradient: Tensor,
    coefficients: Tensor,
    _start: Any,
    _key: Any,
) -> None:
    results = _adamw(weight, first, second, gradient, coefficients)
    for target, result in zip((weight, first, second), results, strict=True):
        target.copy_(result)


def _update_bfloat16(
    weight: Tensor,
    first: Tensor,
    second: Tensor,
    gradient: Tensor,
    coefficients: Tensor,
    start: Tensor,
    key: Tensor,
) -> None:
    new_weight, new_first, new_second = _adamw(
        weight.float(), first.float(), second.float(), gradient.float(), coefficients
    )
    element = torch.arange(weight.numel(), dtype=torch.int32, device=weight.device) + start
    bits = random_bits(element, key)
    weight.copy_(round_stochastically(new_weight, bits))
    first.copy_(round_stochastically(new_first, high_bits(bits)))
    second.copy_(round_stochastically(new_second, further_bits(bits)))
