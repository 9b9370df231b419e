"""Number formats that this machine's processor computes by itself."""

from __future__ import annotations

import re
from pathlib import Path

from encore.core.versions import installed_version

_PROCESSOR = Path("/proc/cpuinfo")
#: Features of x86 and ARM processors by the format that they compute without a conversion.
_UNITS = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"},
    "float16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}


def is_imitated(dtype: str) -> bool:
    """Return True if a processor without units for a format does the work, so that it is slow.

    False where torch is no CPU build, because there may be a GPU, and where nothing is known of the
    processor.
    """
    if not (installed_version("torch") or "").endswith("+cpu"):
        return False
    try:
        text = _PROCESSOR.read_text("utf-8", "replace")
    except OSError:
        return False
    features = re.search(r"^(?:flags|Features)\s*:(.*)$", text, flags=re.MULTILINE)
    return features is not None and _UNITS.get(dtype, {dtype}).isdisjoint(features[1].split())
