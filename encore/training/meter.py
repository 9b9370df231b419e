"""How fast a run goes and how much memory it takes."""

from __future__ import annotations

import resource
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from encore.errors import InputError
from encore.training.backbone_shape import (
    BackboneShape,
    attention_length,
    flops_per_token,
    shape_from_config,
)
from encore.training.config import Method
from encore.training.gpus import peak_flops

if TYPE_CHECKING:
    from encore.model.reward_model import MultiHeadRewardModel

_WINDOW_STEPS = 20
#: Low-rank adapters: frozen weights need gradients of activations (2 a weight and token) but none
#: of their own, so 4 of full training's 6 operations remain.
_LORA_SHARE = 4 / 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Over the last steps: real tokens per second, and the share of the device's peak or None."""

    tokens_per_second: float
    mfu: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """What is needed to tell how much of a device a model uses.

    Attributes:
        shape: Of the trunk.
        peak_flops: Of the device or devices, operations per second.
        share: Of full training's operations that this method needs.
    """

    shape: BackboneShape
    peak_flops: float
    share: float = 1.0


class SpeedMeter:
    """Adds steps up over a moving window, so that one slow step does not look like a trend."""

    def __init__(self, arithmetic: Arithmetic | None = None) -> None:
        """Without arithmetic there is no utilisation."""
        self._arithmetic = arithmetic
        # Real tokens, seconds and operations of each step.
        self._steps: deque[tuple[int, float, float]] = deque(maxlen=_WINDOW_STEPS)

    def add(self, length_N: Sequence[int], *, num_computed: int, seconds: float) -> Speed:
        """Count a step in and say how fast the last steps were.

        Args:
            length_N: Tokens of each sequence of the step.
            num_computed: Token positions computed. Where prompts are shared these are fewer than
                the sequences have, and only these count as work.
            seconds: The step took.
        """
        num_tokens = sum(length_N)
        operations = 0.0
        if self._arithmetic is not None:
            per_token = flops_per_token(
                self._arithmetic.shape, sequence_length=attention_length(length_N)
            )
            operations = min(num_tokens, num_computed) * per_token * self._arithmetic.share
        self._steps.append((num_tokens, seconds, operations))
        tokens, times, work = (sum(values) for values in zip(*self._steps, strict=True))
        used = None
        if self._arithmetic is not None:
            used = work / times / self._arithmetic.peak_flops
        return Speed(tokens_per_second=tokens / times, mfu=used)


def arithmetic_of(
    model: MultiHeadRewardModel, *, method: Method, num_devices: int = 1
) -> Arithmetic | None:
    """What utilisation needs; None where the device's peak or the kind of model is not known.

    Args:
        model: On its device.
        method: How it is trained.
        num_devices: How many of this device share a step.
    """
    device = model.heads.weight.device
    if device.type != "cuda":
        return None
    dtype = str(next(model.trunk.parameters()).dtype)
    peak = peak_flops(torch.cuda.get_device_name(device), dtype=dtype)
    if peak is None:
        return None
    try:
        shape = shape_from_config(model.trunk.config.to_dict(), name="trunk")
    except InputError:
        return None
    return Arithmetic(
        shape=shape,
        peak_flops=peak * num_devices,
        share=_LORA_SHARE if method == "lora" else 1.0,
    )


def peak_memory_bytes(device: Any) -> int:
    """The most memory of this process so far: of tensors on its GPU, else what was resident."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
