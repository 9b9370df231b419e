"""Accelerators: memory that can be used, its bandwidth, and dense peak arithmetic.

Peaks are NVIDIA's own figures *without* sparsity (data sheets print most tensor core figures with
2:4 sparsity, twice the dense ones): the data sheets of each card, and the "Ada GPU Architecture"
and "Ampere GA102 GPU Architecture" white papers for the GeForce cards (bfloat16 with float32
accumulation). float32 is the plain pipeline, not TF32: PyTorch's default.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from encore.core.config import option
from encore.core.errors import InputError

#: The field ``utilisation`` of the configs that plan a run.
UTILISATION: Any = option(
    0.4, ge=0.01, le=1, help="Share of the GPU's dense peak that useful arithmetic gets."
)

#: A CUDA context with the kernels of PyTorch and cuBLAS takes 0.5 to 0.8 GiB.
_CONTEXT_GIB = 0.75
#: Held by PyTorch's caching allocator in pieces that no request fits.
_FRAGMENTED_SHARE = 0.02


class Gpu(NamedTuple):
    """One accelerator.

    ``memory_gib`` is what programs see after the driver and the error correction took theirs (not
    the GB of the brochure); ``bf16_tflops`` is dense; ``bandwidth_gb_s`` is the memory's;
    ``device_names`` are CUDA's, exactly.
    """

    name: str
    memory_gib: float
    bf16_tflops: float
    fp32_tflops: float
    bandwidth_gb_s: float
    device_names: tuple[str, ...]

    @property
    def usable_gib(self) -> float:
        """What tensors can have: without the CUDA context and what the allocator cannot fill."""
        return (self.memory_gib - _CONTEXT_GIB) * (1 - _FRAGMENTED_SHARE)

    def peak_flops(self, *, weight_bytes: int) -> float:
        """Dense peak operations per second on weights of 4 bytes (without TF32) or of 2."""
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


def gpu_named(name: str) -> Gpu:
    """The accelerator of a name of this table, such as ``h100-80``, or of CUDA's own name.

    Raises:
        InputError: Not in the table.
    """
    for gpu in GPUS:
        if name.lower() == gpu.name or name in gpu.device_names:
            return gpu
    names = ", ".join(gpu.name for gpu in GPUS)
    raise InputError(f"GPU {name!r}: not in the table; expected one of {names}")
