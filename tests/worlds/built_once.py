"""Files that every run of the tests needs, and that one checkout makes once, in ``build/tests``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import certifi

_FOLDER = Path(__file__).resolve().parents[2] / "build" / "tests"


def built_once(name: str, build: Callable[[Path], object]) -> Path:
    """Return a file that tests only read. Several processes may ask for it at once.

    Args:
        name: The file's name, with the versions of what made it.
        build: Makes the file at the path that it is called with.
    """
    path = _FOLDER / name
    if not path.exists():
        _FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
            build(Path(folder) / name)
            (Path(folder) / name).replace(path)
    return path


def one_certificate() -> Path:
    """Return a file with the first certificate that HTTP clients trust by default."""
    end = "-----END CERTIFICATE-----\n"
    first = Path(certifi.where()).read_text("utf-8").partition(end)[0] + end
    return built_once("certificate.pem", lambda path: path.write_text(first))
