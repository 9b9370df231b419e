"""AdamW in bfloat16 that does not stall, applied in the backward pass.

Rounding to nearest loses every update smaller than half the distance of two bfloat16 numbers: at a
learning rate of 2e-5 about 70 % of weights drawn from N(0, 0.02) would never move. Here weights and
both moments are rounded stochastically: the arithmetic is float32, only what is stored is bfloat16:
6 bytes a parameter, and no copy in float32.

A parameter is updated the moment its gradient is complete, and the gradient is freed at once. The
gradients of a whole model then never exist together: of 7.5 billion bfloat16 weights that is 14 GiB
less. It holds for steps of one forward and backward pass.

A bfloat16 number is a float32 without its last 16 bits. Adding 16 random bits before cutting them
off rounds up with exactly the probability that keeps the mean. The bits are a hash of (seed, step,
parameter number, element): a resumed run needs no generator state, and a tensor may be processed in
any pieces, on any device.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from encore.model.fusing import has_compiler
from encore.training.optimizers import clip, gradient_norm, total_norm
from encore.training.ranks import first_element, local_part, shard_group

if TYPE_CHECKING:
    from encore.training.training_config import TrainingConfig


class StochasticAdamW:
    """AdamW with bfloat16 states for bfloat16 parameters, float32 states for float32 ones.

    A parameter that the armed backward pass did not reach is updated by `finish`, as is every
    parameter when ``is_in_backward`` is False: the results are the same to the last bit. Of a
    sharded parameter each process updates its own shard.

    When `finish` raises `NonFiniteGradientError`, parameters updated in the backward pass are
    already spoilt; the caller goes back to a checkpoint.

    Args:
        parameters: By name; their order numbers them for the random bits.
        config: AdamW's constants, the seed of the random bits, clipping.
        is_in_backward: False leaves all updates to `finish`.
        chunk_elements: Elements processed at once; changes speed and memory, no result. By default
            float32 intermediates stay in a CPU's cache, numbers in a GPU kernel's index range.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        config: TrainingConfig,
        *,
        is_in_backward: bool = True,
        chunk_elements: int | None = None,
    ) -> None:
        self._parameters = dict(parameters)
        self._config = config
        self._norms: dict[str, Tensor] = {}
        self._is_armed = False
        for name, parameter in parameters.items():
            if is_in_backward:
                parameter.register_post_accumulate_grad_hook(partial(self._accumulated, name))
        self._device = next(iter(self._parameters.values())).device
        is_cuda = self._device.type == "cuda"
        self._chunk = chunk_elements or (2**25 if is_cuda else 2**16)
        # One kernel an update, where there is a compiler.
        self._kernels = _kernels(is_compiled=is_cuda and has_compiler())
        self._moments = {
            name: tuple(torch.zeros_like(parameter, requires_grad=False) for _ in range(2))
            for name, parameter in self._parameters.items()
        }
        self._num_updates = torch.zeros((), dtype=torch.int64)
        largest = max(parameter.numel() for parameter in self._parameters.values())
        # Of every piece the first element, on the device: a kernel takes it without a transfer. A
        # shard's elements have the numbers that they have in the whole parameter: the same bits.
        starts = torch.arange(0, largest, self._chunk, device=self._device).to(torch.int32)
        self._starts = {
            name: starts + first_element(parameter) for name, parameter in self._parameters.items()
        }
        self._keys: Mapping[str, Tensor] = {}
        self._coefficients = torch.zeros(0)

    def arm(self, *, step: int, learning_rate: float) -> None:
        """See `StepOptimizer.arm`."""
        self._num_updates += 1
        num_updates = int(self._num_updates)
        beta_1, beta_2 = self._config.adam_betas
        # What an update multiplies with, in float64 until the end: see `_adamw` for the order.
        coefficients = [
            1 - beta_1,
            1 - beta_2,
            learning_rate / (1 - beta_1**num_updates),
            (1 - beta_2**num_updates) ** -0.5,
            self._config.adam_epsilon,
            1 - learning_rate * self._config.weight_decay,
        ]
        self._coefficients = torch.tensor(coefficients, dtype=torch.float32, device=self._device)
        keys = [
            stream_key(seed=self._config.seed, step=step, parameter=number)
            for number in range(len(self._parameters))
        ]
        key_table = torch.tensor(keys, dtype=torch.int32, device=self._device)
        self._keys = dict(zip(self._parameters, key_table, strict=True))
        self._norms.clear()
        self._is_armed = True

    def finish(self) -> float:
        """See `StepOptimizer.finish`."""
        assert self._is_armed, "arm() comes before the last backward pass of a step"
        self._is_armed = False
        left = {name: p for name, p in self._parameters.items() if p.grad is not None}
        try:
            for name, parameter in left.items():
                self._norms[name] = gradient_norm(local_part(parameter.grad))
            norm = total_norm(self._norms, group=shard_group(self._parameters.values()))
            for name, parameter in left.items():
                self._update(name, parameter)
        finally:
            for parameter in left.values():
                parameter.grad = None
        return norm

    def state(self) -> dict[str, Tensor]:
        """Both moments of every parameter and the number of updates so far."""
        tensors = {"num_updates": self._num_updates}
        for name, (first, second) in self._moments.items():
            tensors[f"{name}/first_moment"] = first
            tensors[f"{name}/second_moment"] = second
        return tensors

    def _accumulated(self, name: str, parameter: nn.Parameter) -> None:
        if not self._is_armed:
            return
        self._norms[name] = gradient_norm(local_part(parameter.grad))
        self._update(name, parameter)
        parameter.grad = None

    def _update(self, name: str, parameter: nn.Parameter) -> None:
        """Change one parameter, or this process's shard of it, and its moments in place."""
        gradient = local_part(parameter.grad)
        if self._config.clip_gradient is not None:
            clip(gradient, self._norms[name], self._config.clip_gradient)
        weight = local_part(parameter).detach().view(-1)
        moments = (local_part(moment).view(-1) for moment in self._moments[name])
        flat = [weight, *moments, gradient.reshape(-1)]
        kernel = self._kernels[weight.dtype]
        for number, start in enumerate(range(0, weight.numel(), self._chunk)):
            pieces = [tensor[start : start + self._chunk] for tensor in flat]
            kernel(*pieces, self._coefficients, self._starts[name][number], self._keys[name])


# --- one update ---------------------------------------------------------------------------------


@functools.cache
def _kernels(*, is_compiled: bool) -> dict[torch.dtype, Callable[..., None]]:
    kernels: dict[torch.dtype, Callable[..., None]] = {
        torch.bfloat16: _update_bfloat16,
        torch.float32: _update_float32,
    }
    if is_compiled:  # dynamic: one kernel for all sizes
        compiled = functools.partial(torch.compile, dynamic=True, fullgraph=True)
        kernels = {dtype: compiled(kernel) for dtype, kernel in kernels.items()}
    return kernels


# An update changes weights and both moments in place. ``others`` are the gradient, the coefficients
# of `StochasticAdamW.arm`, the number of the first element and the key of the random bits.


def _adamw(
    weight: Tensor, first: Tensor, second: Tensor, gradient: Tensor, coefficients: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """New weights and moments. All float32, with weight decay decoupled from the gradient."""
    first = first + (gradient - first) * coefficients[0]
    second = second + (gradient * gradient - second) * coefficients[1]
    denominator = second.sqrt() * coefficients[3] + coefficients[4]
    return weight * coefficients[5] - coefficients[2] * (first / denominator), first, second


def _update_float32(weight: Tensor, first: Tensor, second: Tensor, *others: Tensor) -> None:
    gradient, coefficients, _start, _key = others
    results = _adamw(weight, first, second, gradient, coefficients)
    for target, result in zip((weight, first, second), results, strict=True):
        target.copy_(result)


def _update_bfloat16(weight: Tensor, first: Tensor, second: Tensor, *others: Tensor) -> None:
    gradient, coefficients, start, key = others
    new_weight, new_first, new_second = _adamw(
        weight.float(), first.float(), second.float(), gradient.float(), coefficients
    )
    element = torch.arange(weight.numel(), dtype=torch.int32, device=weight.device) + start
    bits = random_bits(element, key)
    weight.copy_(round_stochastically(new_weight, bits))
    first.copy_(round_stochastically(new_first, high_bits(bits)))
    second.copy_(round_stochastically(new_second, further_bits(bits)))


# --- stochastic rounding ------------------------------------------------------------------------

# Rounds and constants of Chris Wellons' "lowbias32" (public domain): a change of any input bit
# changes each output bit with probability 1/2 to within 0.17 %. As signed 32-bit numbers.
_MULTIPLIER_1 = 0x7FEB352D
_MULTIPLIER_2 = 0x846CA68B - 2**32
#: Starts a second stream from the first: the golden ratio's 32 bits.
_SECOND_STREAM = 0x9E3779B9 - 2**32


def stream_key(*, seed: int, step: int, parameter: int) -> tuple[int, int]:
    """Two signed 32-bit numbers that differ between seeds, steps and parameters."""
    text = struct.pack("<Qqq", seed, step, parameter)
    first, second = struct.unpack("<ii", hashlib.blake2b(text, digest_size=8).digest())
    return first, second


def random_bits(element: Tensor, key: Tensor) -> Tensor:
    """32 random bits for each element, int32: any 16 of them serve `round_stochastically`.

    Args:
        element: Numbers of the elements, int32.
        key: `stream_key` as int32, shape [2].
    """
    return _mixed(_mixed(element ^ key[0]) ^ key[1])


def further_bits(bits: Tensor) -> Tensor:
    """32 more, where 32 are not enough."""
    return _mixed(bits ^ _SECOND_STREAM)


def high_bits(bits: Tensor) -> Tensor:
    """The upper 16 bits, for a second use of the same 32."""
    return (bits >> 16) & 0xFFFF


def round_stochastically(value: Tensor, bits: Tensor) -> Tensor:
    """Values as bfloat16, each up or down so that its expectation is the value itself.

    Numbers that bfloat16 can hold never change; NaN and infinity pass.

    Args:
        value: float32.
        bits: int32 of the same shape, of which the lowest 16 are used.
    """
    raised = value.view(torch.int32) + (bits & 0xFFFF)
    rounded = (raised & -0x10000).view(torch.float32)
    # On NaN the addition would run over into the sign; the plain cast keeps it.
    return torch.where(torch.isfinite(value), rounded, value).to(torch.bfloat16)


def _mixed(x: Tensor) -> Tensor:
    """A bijection of 32-bit integers without visible structure. Multiplication wraps around."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * _MULTIPLIER_1  # masked: >> repeats the sign bit
    x = (x ^ ((x >> 15) & 0x1FFFF)) * _MULTIPLIER_2
    return x ^ ((x >> 16) & 0xFFFF)
