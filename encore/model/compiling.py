"""Whether torch.compile can make kernels for a GPU on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping


def has_compiler(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether there is a C compiler, with which Triton builds what starts its kernels."""
    names = (environ.get("CC"), "cc", "gcc", "clang")
    return any(name is not None and shutil.which(name) is not None for name in names)
