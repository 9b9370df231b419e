"""How fast a training goes and how much memory it takes."""

from __future__ import annotations

import resource
import sys
from collections import deque
from collections.abc import Sequence
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


class SpeedMeter:
    """Tokens per second and utilisation (MFU) over the last 20 steps.

    Args:
        shape: Of the trunk; None: no utilisation.
        peak_flops: Of the device or devices, operations per second.
        share: Of full training's operations that the method needs.
    """

    def __init__(
        self, shape: BackboneShape | None = None, *, peak_flops: float = 0.0, share: float = 1.0
    ) -> None:
        self._shape = shape
        self._peak_flops = peak_flops
        self._share = share
        # Real tokens, seconds and operations of each step.
        self._steps: deque[tuple[int, float, float]] = deque(maxlen=_WINDOW_STEPS)

    def add(
        self, length_N: Sequence[int], *, num_computed: int, seconds: float
    ) -> tuple[float, float | None]:
        """Count a step; tokens per second and MFU (None without a shape) over the last steps.

        Args:
            length_N: Tokens of each sequence of the step.
            num_computed: Token positions computed. Where prompts are shared these are fewer than
                the sequences have, and only these count as work.
            seconds: The step took.
        """
        num_tokens, operations = sum(length_N), 0.0
        if self._shape is not None:
            per_token = flops_per_token(self._shape, sequence_length=attention_length(length_N))
            operations = min(num_tokens, num_computed) * per_token * self._share
        self._steps.append((num_tokens, seconds, operations))
        tokens, times, work = (sum(values) for values in zip(*self._steps, strict=True))
        mfu = None if self._shape is None else work / times / self._peak_flops
        return tokens / times, mfu


def speed_meter_of(
    model: MultiHeadRewardModel, *, method: Method, num_devices: int = 1
) -> SpeedMeter:
    """A meter for a model in training; without MFU where the device's peak or the kind is unknown.

    Args:
        model: On its device.
        method: How it is trained.
        num_devices: How many of this device share a step.
    """
    device = model.heads.weight.device
    if device.type != "cuda":
        return SpeedMeter()
    dtype = str(next(model.trunk.parameters()).dtype)
    peak = peak_flops(torch.cuda.get_device_name(device), dtype=dtype)
    if peak is None:
        return SpeedMeter()
    try:
        shape = shape_from_config(model.trunk.config.to_dict(), name="trunk")
    except InputError:
        return SpeedMeter()
    share = _LORA_SHARE if method == "lora" else 1.0
    return SpeedMeter(shape, peak_flops=peak * num_devices, share=share)


def peak_memory_bytes(device: Any) -> int:
    """The most memory of this process so far: of tensors on its GPU, else what was resident."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
