"""Arithmetic per token, a device's peak, and the share of it that training uses.

Convention (PaLM, appendix B): *model* FLOPs utilisation counts the operations that training needs,
not those spent on computing activations a second time for gradient checkpointing. A multiplication
and an addition are two operations. Backward costs twice forward. The embedding tables are looked up
and the norms are not counted; the heads are too small to count.
"""

from __future__ import annotations

from collections.abc import Sequence

from encore.errors import InputError
from encore.training.plan.gpus import gpu_of_device
from encore.training.plan.shapes import ModelShape

_FORWARD = 2
_FORWARD_AND_BACKWARD = 3 * _FORWARD
_WITH_RECOMPUTATION = _FORWARD_AND_BACKWARD + _FORWARD


def flops_per_token(
    shape: ModelShape,
    *,
    sequence_length: float = 0.0,
    is_checkpointed: bool = False,
    is_training: bool = True,
) -> float:
    """Floating point operations for one token, forward and backward.

    Six per matrix weight. Attention adds, in each layer, a score and a weighted sum over the
    tokens that are attended to: half the sequence for a causal model.

    Args:
        shape: The backbone.
        sequence_length: Length in tokens as a token sees it (`attention_length`); 0 leaves
            attention over the sequence out, 0.6 % of the whole at 300 tokens of Llama 3.1 8B.
        is_checkpointed: True counts the second forward pass of gradient checkpointing: what the
            device does. Leave it False for utilisation.
        is_training: False: one forward pass alone.
    """
    if sequence_length < 0:
        raise InputError(f"sequence_length {sequence_length}: expected 0 or more tokens")
    attended = sequence_length / 2 if shape.is_causal else sequence_length
    attention = 2 * shape.num_layers * shape.query_size * attended
    per_operand = shape.num_matrix_parameters + attention
    if not is_training:
        return _FORWARD * per_operand
    return (_WITH_RECOMPUTATION if is_checkpointed else _FORWARD_AND_BACKWARD) * per_operand


def attention_length(lengths: Sequence[int]) -> float:
    """The length of the sequence that an average token is in: Σ l² / Σ l, in tokens."""
    total = sum(lengths)
    return sum(length * length for length in lengths) / total if total else 0.0


def peak_flops(device_name: str, *, dtype: str = "bfloat16") -> float | None:
    """Dense peak operations per second of a device, None where it is not known (a CPU).

    Args:
        device_name: As ``torch.cuda.get_device_name()`` says it.
        dtype: bfloat16, float16 (the same) or float32 (without TF32); ``torch.`` may precede.
    """
    gpu = gpu_of_device(device_name)
    if gpu is None:
        return None
    peaks = {
        "bfloat16": gpu.bf16_tflops,
        "float16": gpu.bf16_tflops,
        "float32": gpu.fp32_tflops,
    }
    peak = peaks.get(dtype.removeprefix("torch."))
    return None if peak is None else peak * 1e12


def mfu(
    tokens_per_second: float, *, flops_per_token: float, peak_flops: float | None
) -> float | None:
    """Model FLOPs utilisation in 0 to 1; None where the device's peak is not known.

    Args:
        tokens_per_second: Tokens of the data, each sequence as if it stood alone: neither padding
            nor recomputation is work done.
        flops_per_token: Without recomputation (`flops_per_token`).
        peak_flops: Of the device (`peak_flops`).
    """
    return None if peak_flops is None else tokens_per_second * flops_per_token / peak_flops
