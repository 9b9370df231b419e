"""What the HTTP clients of tests trust."""

from __future__ import annotations

import os
from pathlib import Path

import certifi


def one_certificate(folder: Path) -> Path:
    """Write the first certificate that httpx trusts into a folder, once, and return its file."""
    path = folder / "certificate.pem"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        end = "-----END CERTIFICATE-----\n"
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(Path(certifi.where()).read_text("utf-8").partition(end)[0] + end)
        unfinished.replace(path)
    return path
