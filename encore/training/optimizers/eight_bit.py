"""AdamW with 8-bit states, by bitsandbytes or torchao where one of them is installed.

Either library updates a float32 copy of one parameter at a time, which is rounded stochastically
back to bfloat16: 8-bit states alone would not keep small updates from being lost in the weights.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from encore.errors import InputError
from encore.model.fusing import has_compiler
from encore.training.optimizers.in_backward import InBackwardOptimizer
from encore.training.optimizers.rounding import random_bits, round_stochastically, stream_key
from encore.training.optimizers.step_optimizer import AdamSettings, copy_state

#: Where ``AdamW8bit`` is found and on which devices it runs, in the order in which we look.
_LIBRARIES = (
    ("bitsandbytes", "bitsandbytes.optim", ("cuda",)),
    ("torchao", "torchao.optim", ("cuda", "cpu")),
)
_CHUNK = 2**25


@dataclass(frozen=True, slots=True, kw_only=True)
class EightBitLibrary:
    """A package with an 8-bit AdamW, and its class."""

    package: str
    adamw: Callable[..., Any]


def find_library(*, device: str) -> EightBitLibrary:
    """The first installed library that has 8-bit states for this kind of device.

    Raises:
        InputError: none is installed, or it is and cannot be imported.
    """
    fitting = [(name, module) for name, module, devices in _LIBRARIES if device in devices]
    for package, module_name in fitting:
        if importlib.util.find_spec(package) is None:
            continue
        try:
            module = importlib.import_module(module_name)
            return EightBitLibrary(package=package, adamw=module.AdamW8bit)
        except (ImportError, AttributeError, OSError, RuntimeError) as error:
            raise InputError(
                f"optimizer adamw-8bit: {package} is installed, but {module_name}.AdamW8bit cannot "
                f"be loaded ({error}); reinstall it, or use optimizer adamw-stochastic"
            ) from error
    names = " or ".join(name for name, _ in fitting) or "an accelerator"
    raise InputError(
        f"optimizer adamw-8bit needs {names} on {device}, which is not installed; pip install it, "
        "or use optimizer adamw-stochastic"
    )


class EightBitAdamW(InBackwardOptimizer):
    """A library's 8-bit AdamW, one parameter at a time, in the backward pass.

    Args:
        parameters: By name; their order numbers them for the random bits.
        settings: AdamW's constants.
        seed: Of the random bits that round bfloat16 weights.
        library: From `find_library`.
        is_in_backward: False leaves all updates to `finish`.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        settings: AdamSettings,
        seed: int,
        library: EightBitLibrary,
        is_in_backward: bool = True,
    ) -> None:
        super().__init__(parameters, is_in_backward=is_in_backward)
        self._numbers = {name: number for number, name in enumerate(self._parameters)}
        self._seed = seed
        self._step = 0
        self._learning_rate = 0.0
        self._optimizers = {
            name: _one_parameter_optimizer(library, settings, parameter)
            for name, parameter in self._parameters.items()
        }

    def state(self) -> dict[str, Tensor]:
        """The library's own tensors and counters of every parameter that was updated so far."""
        return {
            f"{name}/{key}": tensor
            for name, optimizer in self._optimizers.items()
            for key, tensor in _flattened(_states(optimizer)).items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `StepOptimizer.load_state`.

        The library builds its state in a step that changes nothing, into which the saved one is
        then copied.
        """
        for name, optimizer in self._optimizers.items():
            prefix = f"{name}/"
            saved = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            if not saved:
                continue
            blank = torch.zeros_like(self._parameters[name], dtype=torch.float32)
            _step(optimizer, blank, torch.zeros_like(blank), learning_rate=0.0)
            states = _states(optimizer)
            copy_state(_flattened(states), saved)
            for key, value in states.items():
                if isinstance(value, int | float):
                    states[key] = type(value)(saved[key].item())
        copy_state(self.state(), state)  # refuses what belongs to no parameter of this model

    def _begin_step(self, *, step: int, learning_rate: float) -> None:
        self._step = step
        self._learning_rate = learning_rate

    def _update(self, name: str, parameter: Tensor, gradient: Tensor) -> None:
        weight = parameter.detach().float()  # a float32 parameter itself, else a copy
        gradient = gradient.float().contiguous()
        _step(self._optimizers[name], weight, gradient, learning_rate=self._learning_rate)
        if parameter.dtype == torch.bfloat16:
            key = stream_key(seed=self._seed, step=self._step, parameter=self._numbers[name])
            _round_into(parameter.detach(), weight, key=key)


def _one_parameter_optimizer(
    library: EightBitLibrary, settings: AdamSettings, parameter: nn.Parameter
) -> Any:
    """An optimizer of a placeholder, which `_step` fills for the length of one update."""
    placeholder = nn.Parameter(torch.empty(0, dtype=torch.float32, device=parameter.device))
    return library.adamw(
        [placeholder],
        lr=0.0,
        betas=(settings.beta_1, settings.beta_2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )


def _step(optimizer: Any, weight: Tensor, gradient: Tensor, *, learning_rate: float) -> None:
    """One update of ``weight`` in place."""
    (group,) = optimizer.param_groups
    if isinstance(group["lr"], Tensor):  # torchao keeps a tensor, which compiled code reads
        group["lr"].fill_(learning_rate)
    else:
        group["lr"] = learning_rate
    (placeholder,) = group["params"]
    empty = placeholder.data
    placeholder.data = weight
    placeholder.grad = gradient
    try:
        optimizer.step()
    finally:
        placeholder.grad = None
        placeholder.data = empty


def _states(optimizer: Any) -> dict[str, Any]:
    (placeholder,) = optimizer.param_groups[0]["params"]
    states: dict[str, Any] = optimizer.state[placeholder]
    return states


def _flattened(states: Mapping[str, Any]) -> dict[str, Tensor]:
    """Plain tensors only: numbers become tensors, quantised ones their parts."""
    flat: dict[str, Tensor] = {}
    for key, value in states.items():
        if isinstance(value, int | float):
            flat[key] = torch.tensor(value)
        elif hasattr(value, "__tensor_flatten__"):
            parts: Sequence[str] = value.__tensor_flatten__()[0]
            flat |= {f"{key}/{part}": getattr(value, part) for part in parts}
        elif isinstance(value, Tensor):
            flat[key] = value
    return flat


def _round_into(target: Tensor, value: Tensor, *, key: tuple[int, int]) -> None:
    """Store float32 values as bfloat16, rounded stochastically, piece by piece."""
    device = target.device
    keys = torch.tensor(key, dtype=torch.int32, device=device)
    rounded_piece = _rounded_piece(is_compiled=device.type == "cuda" and has_compiler())
    flat_target, flat_value = target.view(-1), value.view(-1)
    for start in range(0, target.numel(), _CHUNK):
        stop = min(start + _CHUNK, target.numel())
        element = torch.arange(start, stop, dtype=torch.int32, device=device)
        flat_target[start:stop] = rounded_piece(flat_value[start:stop], element, keys)


@cache
def _rounded_piece(*, is_compiled: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def rounded(value: Tensor, element: Tensor, key: Tensor) -> Tensor:
        return round_stochastically(value, random_bits(element, key))

    if not is_compiled:
        return rounded
    compiled: Callable[..., Tensor] = torch.compile(rounded, dynamic=True, fullgraph=True)
    return compiled
