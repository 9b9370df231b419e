"""Accelerators: memory that can be used, dense peak arithmetic, bandwidth.

Peaks are NVIDIA's own figures *without* sparsity (data sheets print most tensor core figures with
2:4 sparsity, twice the dense ones): "H100 Tensor Core GPU" (SXM, PCIe, NVL), "H200 Tensor Core
GPU", "HGX B200", "A100 Tensor Core GPU", "L40S", "L4", "A10", "RTX A6000" data sheets, and the
"Ada GPU Architecture" and "Ampere GA102 GPU Architecture" white papers for the GeForce cards
(bfloat16 with float32 accumulation). float32 is the plain pipeline, not TF32: PyTorch's default.
"""

from __future__ import annotations

from dataclasses import dataclass

from encore.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator.

    ``memory_gib`` is what programs see after the driver and the error correction took theirs (not
    the GB of the brochure); ``bf16_tflops`` is dense; ``bandwidth_gbps`` is in 10⁹ bytes per
    second. ``device_names`` are what CUDA calls it, exactly.
    """

    name: str
    memory_gib: float
    bf16_tflops: float
    fp32_tflops: float
    bandwidth_gbps: float
    device_names: tuple[str, ...]

    @property
    def usable_gib(self) -> float:
        """What tensors can have: without the CUDA context and what the allocator cannot fill."""
        return (self.memory_gib - CONTEXT_GIB) * (1 - FRAGMENTED_SHARE)


#: A CUDA context with the kernels of PyTorch and cuBLAS takes 0.5 to 0.8 GiB.
CONTEXT_GIB = 0.75
#: Held by PyTorch's caching allocator in pieces that no request fits.
FRAGMENTED_SHARE = 0.02


def _gpu(
    name: str,
    memory_gib: float,
    tflops: tuple[float, float],
    bandwidth_gbps: float,
    *device_names: str,
) -> Gpu:
    return Gpu(
        name=name,
        memory_gib=memory_gib,
        bf16_tflops=tflops[0],
        fp32_tflops=tflops[1],
        bandwidth_gbps=bandwidth_gbps,
        device_names=device_names,
    )


# name, GiB, (bfloat16, float32) TFLOPS, GB/s, CUDA's names
GPUS = (
    _gpu("h100-80", 79.2, (989.4, 66.9), 3350, "NVIDIA H100 80GB HBM3"),
    _gpu("h100-pcie-80", 79.2, (756.5, 51.2), 2000, "NVIDIA H100 PCIe"),
    _gpu("h100-nvl-94", 93.1, (835.5, 60.0), 3900, "NVIDIA H100 NVL"),
    _gpu("h200-141", 139.8, (989.4, 66.9), 4800, "NVIDIA H200"),
    _gpu("h200-nvl-141", 139.8, (835.5, 60.0), 4800, "NVIDIA H200 NVL"),
    _gpu("b200-180", 178.3, (2250.0, 75.0), 7700, "NVIDIA B200"),
    _gpu("a100-80", 79.2, (312.0, 19.5), 2039, "NVIDIA A100-SXM4-80GB"),
    _gpu("a100-pcie-80", 79.2, (312.0, 19.5), 1935, "NVIDIA A100 80GB PCIe"),
    _gpu("a100-40", 39.4, (312.0, 19.5), 1555, "NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"),
    _gpu("l40s-48", 44.4, (362.05, 91.6), 864, "NVIDIA L40S"),
    _gpu("a6000-48", 47.4, (154.8, 38.7), 768, "NVIDIA RTX A6000"),
    _gpu("l4-24", 22.0, (121.0, 30.3), 300, "NVIDIA L4"),
    _gpu("a10-24", 22.1, (125.0, 31.2), 600, "NVIDIA A10"),
    _gpu("rtx4090-24", 23.6, (165.2, 82.6), 1008, "NVIDIA GeForce RTX 4090"),
    _gpu("rtx3090-24", 23.6, (71.2, 35.6), 936, "NVIDIA GeForce RTX 3090"),
)

_BY_DEVICE_NAME = {device: gpu for gpu in GPUS for device in gpu.device_names}
_BY_NAME = {gpu.name: gpu for gpu in GPUS}


def gpu_named(name: str) -> Gpu:
    """The accelerator of a name of this table, such as ``h100-80``, or of CUDA's own name.

    Raises:
        InputError: not in the table.
    """
    found = _BY_NAME.get(name.lower()) or _BY_DEVICE_NAME.get(name)
    if found is None:
        raise InputError(f"GPU {name!r}: not in the table; expected one of {', '.join(_BY_NAME)}")
    return found


def gpu_of_device(device_name: str) -> Gpu | None:
    """The accelerator that CUDA calls ``device_name``; None where it is not in the table."""
    return _BY_DEVICE_NAME.get(device_name)
