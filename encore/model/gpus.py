"""Table of GPUs: usable memory, memory bandwidth, and dense peak arithmetic.

Peaks are NVIDIA's figures *without* sparsity (data sheets print most tensor core figures with 2:4
sparsity, which are twice as high). The sources are the data sheet of each card, and for GeForce
cards the white papers "Ada GPU Architecture" and "Ampere GA102 GPU Architecture" (bfloat16 with
float32 accumulation). float32 figures are without TF32, which is PyTorch's default.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from encore.core.config import option
from encore.core.errors import InputError

#: The field ``utilisation`` of the configs that plan a run.
UTILISATION: Any = option(
    0.4, ge=0.01, le=1, help="Share of the GPU's dense peak that useful arithmetic reaches."
)

#: A CUDA context with the kernels of PyTorch and cuBLAS takes 0.5 to 0.8 GiB.
_CONTEXT_GIB = 0.75
#: Share of the memory that PyTorch's allocator holds in pieces too small to use.
_FRAGMENTED_SHARE = 0.02


class Gpu(NamedTuple):
    """One model of GPU.

    Attributes:
        name: Short name, e.g. ``h100-80``.
        memory_gib: Memory that programs see, after the driver and error correction.
        bf16_tflops: Dense peak in bfloat16, in 10^12 operations a second.
        fp32_tflops: Peak in float32 without TF32, in 10^12 operations a second.
        bandwidth_gb_s: Memory bandwidth in 10^9 bytes a second.
        device_names: Exact names that CUDA reports for this GPU.
    """

    name: str
    memory_gib: float
    bf16_tflops: float
    fp32_tflops: float
    bandwidth_gb_s: float
    device_names: tuple[str, ...]

    @property
    def usable_gib(self) -> float:
        """Return the memory left for tensors, without the CUDA context and fragments."""
        return (self.memory_gib - _CONTEXT_GIB) * (1 - _FRAGMENTED_SHARE)

    def peak_flops(self, *, weight_bytes: int) -> float:
        """Return the dense peak in operations per second for weights of 4 bytes or of 2."""
        return 1e12 * (self.fp32_tflops if weight_bytes == 4 else self.bf16_tflops)


GPUS = (
    Gpu("h100-80", 79.2, 989.4, 66.9, 3352, ("NVIDIA H100 80GB HBM3",)),
    Gpu("h100-pcie-80", 79.2, 756.5, 51.2, 2039, ("NVIDIA H100 PCIe",)),
    Gpu("h100-nvl-94", 93.1, 835.5, 60.0, 3938, ("NVIDIA H100 NVL",)),
    Gpu("h200-141", 139.8, 989.4, 66.9, 4800, ("NVIDIA H200",)),
    Gpu("h200-nvl-141", 139.8, 835.5, 60.0, 4800, ("NVIDIA H200 NVL",)),
    Gpu("b200-180", 178.3, 2250.0, 75.0, 7700, ("NVIDIA B200",)),
    Gpu("a100-80", 79.2, 312.0, 19.5, 2039, ("NVIDIA A100-SXM4-80GB",)),
    Gpu("a100-pcie-80", 79.2, 312.0, 19.5, 1935, ("NVIDIA A100 80GB PCIe",)),
    Gpu("a100-40", 39.4, 312.0, 19.5, 1555, ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB")),
    Gpu("l40s-48", 44.4, 362.05, 91.6, 864, ("NVIDIA L40S",)),
    Gpu("a6000-48", 47.4, 154.8, 38.7, 768, ("NVIDIA RTX A6000",)),
    Gpu("l4-24", 22.0, 121.0, 30.3, 300, ("NVIDIA L4",)),
    Gpu("a10-24", 22.1, 125.0, 31.2, 600, ("NVIDIA A10",)),
    Gpu("rtx4090-24", 23.6, 165.2, 82.6, 1008, ("NVIDIA GeForce RTX 4090",)),
    Gpu("rtx3090-24", 23.6, 71.2, 35.6, 936, ("NVIDIA GeForce RTX 3090",)),
)


def find_gpu(name: str) -> Gpu:
    """Return the GPU of a short name such as ``h100-80``, or of the name that CUDA reports.

    Raises:
        InputError: The table has no such GPU.
    """
    for gpu in GPUS:
        if name.lower() == gpu.name or name in gpu.device_names:
            return gpu
    names = ", ".join(gpu.name for gpu in GPUS)
    raise InputError(f"GPU {name!r}: not in the table; expected one of {names}")
