"""Addresses of studies in buckets, as they are typed and as they are shown."""

from __future__ import annotations

import re
from pathlib import Path

#: A scheme of two letters or more. A `Path` has only one of its slashes.
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)

#: The address of each study in a bucket that this process opened, by the folder of its local copy.
bucket_addresses: dict[str, str] = {}


def is_address(path: str | Path) -> bool:
    """Return True for an address such as ``s3://bucket/study``, also with one slash."""
    return ADDRESS.fullmatch(str(path)) is not None


def shown_address(path: str | Path) -> str:
    """Return an address for a message, with both slashes and without what may be a key."""
    scheme, _, address = str(path).partition(":")
    name = address.lstrip("/")
    return f"{scheme}://{'…' if {'@', '?'} & {*name} else '/' * (scheme == 'file') + name}"
