"""AdamW with bfloat16 weights and stochastic rounding, applied during the backward pass.

Rounding to nearest loses every update that is smaller than half the distance between two bfloat16
numbers. At a learning rate of 2e-5, about 70 % of weights drawn from N(0, 0.02) would never change.
Here weights and both moments are rounded stochastically. The arithmetic is float32; only the stored
numbers are bfloat16. That takes 6 bytes a parameter, without a float32 copy.

A parameter is updated as soon as its gradient is complete, and the gradient is freed at once. So
the gradients of the whole model never exist together, which saves 14 GiB for 7.5 billion bfloat16
weights. This needs steps of one forward and backward pass.

A bfloat16 number is a float32 number without its last 16 bits. Adding 16 random bits before cutting
them off rounds up with exactly the probability that keeps the mean. The random bits are a hash of
seed, step, parameter number and element. So a resumed run needs no generator state, and a tensor
may be processed in chunks of any size on any device.
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
from encore.training.distributed import first_element, local_part, shard_group
from encore.training.gradient_norms import clip, gradient_norm, total_norm

if TYPE_CHECKING:
    from encore.training.training_options import TrainingConfig


class StochasticAdamW:
    """AdamW with states in the number format of their parameter, bfloat16 or float32.

    `finish` updates the parameters that the last backward pass did not reach, and all parameters if
    ``is_in_backward`` is False. The results are the same to the last bit. Each process updates its
    own shard of a sharded parameter.

    If `finish` raises `NonFiniteGradientError`, parameters that were updated in the backward pass
    are already invalid. The caller must go back to a checkpoint.

    Args:
        parameters: Parameters by name; their order numbers them for the random bits.
        config: Constants of AdamW, seed of the random bits, and clipping.
        is_in_backward: False leaves all updates to `finish`.
        chunk_elements: Elements that are processed at once; no result depends on it. The default
            keeps float32 intermediates in the cache of a CPU, and indices within the range of a
            GPU kernel.
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
                parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, name))
        self._device = next(iter(self._parameters.values())).device
        is_cuda = self._device.type == "cuda"
        self._chunk = chunk_elements or (2**25 if is_cuda else 2**16)
        # If there is a compiler, an update is one kernel.
        self._kernels = _kernels(is_compiled=is_cuda and has_compiler())
        self._moments = {
            name: tuple(torch.zeros_like(parameter, requires_grad=False) for _ in range(2))
            for name, parameter in self._parameters.items()
        }
        self._num_updates = torch.zeros((), dtype=torch.int64)
        largest = max(parameter.numel() for parameter in self._parameters.values())
        # First element of every chunk, on the device, so that a kernel reads it without a transfer.
        # Elements of a shard are numbered as in the whole parameter, so they get the same bits.
        starts = torch.arange(0, largest, self._chunk, device=self._device).to(torch.int32)
        self._starts = {
            name: starts + first_element(parameter) for name, parameter in self._parameters.items()
        }
        self._keys: Mapping[str, Tensor] = {}
        self._coefficients = torch.zeros(0)

    def before_last_backward(self, *, step: int, learning_rate: float) -> None:
        """Compute the step's coefficients and keys; see `StepOptimizer.before_last_backward`."""
        self._num_updates += 1
        num_updates = int(self._num_updates)
        beta_1, beta_2 = self._config.adam_betas
        # Factors of the update, computed in float64, in the order that `_adamw` expects.
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
        """Update the parameters that still have a gradient; see `StepOptimizer.finish`."""
        assert self._is_armed, "before_last_backward() comes before finish() in each step"
        self._is_armed = False
        pending = {name: p for name, p in self._parameters.items() if p.grad is not None}
        try:
            for name, parameter in pending.items():
                self._norms[name] = gradient_norm(local_part(parameter.grad))
            norm = total_norm(self._norms, group=shard_group(self._parameters.values()))
            for name, parameter in pending.items():
                self._update(name, parameter)
        finally:
            for parameter in pending.values():
                parameter.grad = None
        return norm

    def state(self) -> dict[str, Tensor]:
        """Return both moments of every parameter and the number of updates so far."""
        tensors = {"num_updates": self._num_updates}
        for name, (first, second) in self._moments.items():
            tensors[f"{name}/first_moment"] = first
            tensors[f"{name}/second_moment"] = second
        return tensors

    def _on_gradient(self, name: str, parameter: nn.Parameter) -> None:
        """Update a parameter whose gradient is complete, and free the gradient."""
        if not self._is_armed:
            return
        self._norms[name] = gradient_norm(local_part(parameter.grad))
        self._update(name, parameter)
        parameter.grad = None

    def _update(self, name: str, parameter: nn.Parameter) -> None:
        """Update one parameter, or this process's shard of it, and its moments in place."""
        gradient = local_part(parameter.grad)
        if self._config.clip_gradient is not None:
            clip(gradient, self._norms[name], self._config.clip_gradient)
        weight = local_part(parameter).detach().view(-1)
        moments = (local_part(moment).view(-1) for moment in self._moments[name])
        flat = [weight, *moments, gradient.reshape(-1)]
        kernel = self._kernels[weight.dtype]
        for number, start in enumerate(range(0, weight.numel(), self._chunk)):
            chunks = [tensor[start : start + self._chunk] for tensor in flat]
            kernel(*chunks, self._coefficients, self._starts[name][number], self._keys[name])


# --- one update ---------------------------------------------------------------------------------


@functools.cache
def _kernels(*, is_compiled: bool) -> dict[torch.dtype, Callable[..., None]]:
    """Return the update function of each number format."""
    kernels: dict[torch.dtype, Callable[..., None]] = {
        torch.bfloat16: _update_bfloat16,
        torch.float32: _update_float32,
    }
    if is_compiled:  # dynamic: one kernel serves all sizes
        compiled = functools.partial(torch.compile, dynamic=True, fullgraph=True)
        kernels = {dtype: compiled(kernel) for dtype, kernel in kernels.items()}
    return kernels


# An update changes weights and both moments in place. Its further arguments are the gradient, the
# coefficients of `StochasticAdamW.before_last_backward`, the number of the first element and the
# key of the random bits.


def _adamw(
    weight: Tensor, first: Tensor, second: Tensor, gradient: Tensor, coefficients: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return new weights and moments, all float32. Weight decay is decoupled from the gradient."""
    first = first + (gradient - first) * coefficients[0]
    second = second + (gradient * gradient - second) * coefficients[1]
    denominator = second.sqrt() * coefficients[3] + coefficients[4]
    return weight * coefficients[5] - coefficients[2] * (first / denominator), first, second


def _update_float32(weight: Tensor, first: Tensor, second: Tensor, *inputs: Tensor) -> None:
    gradient, coefficients, _start, _key = inputs
    updated = _adamw(weight, first, second, gradient, coefficients)
    for target, new_values in zip((weight, first, second), updated, strict=True):
        target.copy_(new_values)


def _update_bfloat16(weight: Tensor, first: Tensor, second: Tensor, *inputs: Tensor) -> None:
    gradient, coefficients, start, key = inputs
    new_weight, new_first, new_second = _adamw(
        weight.float(), first.float(), second.float(), gradient.float(), coefficients
    )
    element = torch.arange(weight.numel(), dtype=torch.int32, device=weight.device) + start
    bits = random_bits(element, key)
    weight.copy_(round_stochastically(new_weight, bits))
    first.copy_(round_stochastically(new_first, high_bits(bits)))
    second.copy_(round_stochastically(new_second, second_stream_bits(bits)))


# --- stochastic rounding ------------------------------------------------------------------------

# Rounds and constants of Chris Wellons' "lowbias32" (public domain): a change of any input bit
# changes each output bit with probability 1/2 to within 0.17 %. As signed 32-bit numbers.
_MULTIPLIER_1 = 0x7FEB352D
_MULTIPLIER_2 = 0x846CA68B - 2**32
#: Number that derives a second stream from the first: 32 bits of the golden ratio.
_SECOND_STREAM = 0x9E3779B9 - 2**32


def stream_key(*, seed: int, step: int, parameter: int) -> tuple[int, int]:
    """Return two signed 32-bit numbers that differ between seeds, steps and parameters."""
    text = struct.pack("<Qqq", seed, step, parameter)
    first, second = struct.unpack("<ii", hashlib.blake2b(text, digest_size=8).digest())
    return first, second


def random_bits(element: Tensor, key: Tensor) -> Tensor:
    """Return 32 random bits for each element, int32. `round_stochastically` needs 16 of them.

    Args:
        element: Numbers of the elements, int32.
        key: Key of the stream (`stream_key`), int32, shape [2].
    """
    return _mix(_mix(element ^ key[0]) ^ key[1])


def second_stream_bits(bits: Tensor) -> Tensor:
    """Return 32 further random bits for each element, derived from the first 32."""
    return _mix(bits ^ _SECOND_STREAM)


def high_bits(bits: Tensor) -> Tensor:
    """Return the upper 16 of 32 bits, so that both halves can be used."""
    return (bits >> 16) & 0xFFFF


def round_stochastically(value: Tensor, bits: Tensor) -> Tensor:
    """Round values to bfloat16, up or down at random, so that the expectation is the value.

    Numbers that bfloat16 can represent do not change. NaN and infinity stay.

    Args:
        value: Values to round, float32.
        bits: Random bits, int32, of the same shape; the lowest 16 are used.
    """
    raised = value.view(torch.int32) + (bits & 0xFFFF)
    rounded = (raised & -0x10000).view(torch.float32)
    # The addition to a NaN could overflow into the sign bit, so NaN and infinity are cast plainly.
    return torch.where(torch.isfinite(value), rounded, value).to(torch.bfloat16)


def _mix(x: Tensor) -> Tensor:
    """Apply a bijection of 32-bit integers that looks random. Multiplication wraps around."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * _MULTIPLIER_1  # masked: >> repeats the sign bit
    x = (x ^ ((x >> 15) & 0x1FFFF)) * _MULTIPLIER_2
    return x ^ ((x >> 16) & 0xFFFF)
