"""Dense peak arithmetic of GPUs, of which a training says what share it reaches.

Peaks are NVIDIA's figures *without* sparsity (data sheets print most tensor core figures with 2:4
sparsity, which are twice as high). The sources are the data sheet of each card, and for GeForce
cards the white papers "Ada GPU Architecture" and "Ampere GA102 GPU Architecture" (bfloat16 with
float32 accumulation). float32 figures are without TF32, which is PyTorch's default.
"""

from __future__ import annotations

#: Peaks in bfloat16 and in float32 by the name that CUDA reports, in 10^12 operations a second.
PEAK_TFLOPS = {
    "NVIDIA H100 80GB HBM3": (989.4, 66.9),
    "NVIDIA H100 PCIe": (756.5, 51.2),
    "NVIDIA H100 NVL": (835.5, 60.0),
    "NVIDIA H200": (989.4, 66.9),
    "NVIDIA H200 NVL": (835.5, 60.0),
    "NVIDIA B200": (2250.0, 75.0),
    "NVIDIA A100-SXM4-80GB": (312.0, 19.5),
    "NVIDIA A100 80GB PCIe": (312.0, 19.5),
    "NVIDIA A100-SXM4-40GB": (312.0, 19.5),
    "NVIDIA A100-PCIE-40GB": (312.0, 19.5),
    "NVIDIA L40S": (362.05, 91.6),
    "NVIDIA RTX A6000": (154.8, 38.7),
    "NVIDIA L4": (121.0, 30.3),
    "NVIDIA A10": (125.0, 31.2),
    "NVIDIA GeForce RTX 4090": (165.2, 82.6),
    "NVIDIA GeForce RTX 3090": (71.2, 35.6),
}


def peak_flops(device_name: str, *, weight_bytes: int) -> float | None:
    """Return a GPU's dense peak in operations per second for weights of 4 bytes or of 2.

    Args:
        device_name: Name that CUDA reports. None is returned for one that is not in the table.
        weight_bytes: Bytes of a weight.
    """
    if device_name not in PEAK_TFLOPS:
        return None
    bf16_tflops, fp32_tflops = PEAK_TFLOPS[device_name]
    return 1e12 * (fp32_tflops if weight_bytes == 4 else bf16_tflops)
