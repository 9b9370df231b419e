"""The GPUs of this machine, and the groups of them that engines take."""

from __future__ import annotations

import os
import re
import shutil
from typing import Literal

from encore.core.doctor import output_of
from encore.core.errors import InputError

GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"


def engine_environments(
    engines: int | Literal["auto"], gpus_per_engine: int
) -> list[dict[str, str]]:
    """Return the variables that each engine's environment adds: its GPUs, or its share of cores.

    Args:
        engines: Number of engines; ``auto`` takes as many as there are groups of GPUs, or one.
        gpus_per_engine: Number of GPUs that the model takes.

    Raises:
        InputError: The number of visible GPUs does not allow it.
    """
    gpus = visible_gpus()
    if not gpus:
        num_engines = 1 if engines == "auto" else engines
        threads = str(max(1, (os.cpu_count() or 1) // num_engines))
        return [{"OMP_NUM_THREADS": threads}] * num_engines
    if len(gpus) % gpus_per_engine:
        raise InputError(
            f"{len(gpus)} GPUs ({','.join(gpus)}): an engine takes {gpus_per_engine} of them "
            f"(tensor times pipeline parallel size), which does not divide {len(gpus)}; choose the "
            f"GPUs with {GPU_VARIABLE}"
        )
    groups = [
        gpus[first : first + gpus_per_engine] for first in range(0, len(gpus), gpus_per_engine)
    ]
    num_engines = len(groups) if engines == "auto" else engines
    if num_engines > len(groups):
        raise InputError(
            f"--engines {num_engines}: {len(gpus)} GPUs are enough for {len(groups)} engines of "
            f"{gpus_per_engine} GPUs; give at most {len(groups)}"
        )
    return [{GPU_VARIABLE: ",".join(group)} for group in groups[:num_engines]]


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    names = os.environ.get(GPU_VARIABLE)
    if names is not None:
        return [name.strip() for name in names.split(",") if name.strip() not in ("", "-1")]
    command = shutil.which("nvidia-smi")
    listing = output_of(command, "-L") if command else ""
    return re.findall(r"^GPU (\d+):", listing, flags=re.MULTILINE)
