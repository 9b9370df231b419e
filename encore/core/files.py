"""Write files whole or not at all: temporary name, fsync, rename."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from encore.core.errors import EncoreError


@contextlib.contextmanager
def temporary_path(path: Path) -> Iterator[Path]:
    """A new name beside ``path`` for a file in the making; removed at the end if it is still there.

    The name starts with a dot and does not end in the target's suffix, so neither the shell's
    globs nor ``*.parquet`` read it. The folder must exist.
    """
    temporary = path.with_name(f".{path.name}.tmp-{_unique()}")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def publish(temporary: Path, path: Path) -> None:
    """Give a finished file its name by one rename, with file and folder flushed to the disk."""
    fsync_path(temporary)
    temporary.replace(path)
    fsync_path(path.parent)


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder that becomes ``path`` when the block succeeds.

    On any error, Ctrl-C included, the temporary file is removed and ``path`` stays as it was.

    Raises:
        OSError: as the file system reports it (no space, no permission).
    """
    with temporary_path(path) as temporary:
        yield temporary
        publish(temporary, path)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary sibling folder that becomes ``path`` when the block succeeds.

    What was at ``path`` is replaced by two renames: a crash between them leaves neither under that
    name, the old one beside it. On any error, Ctrl-C included, the temporary folder is removed and
    ``path`` stays as it was. The parent folder must exist.

    Raises:
        OSError: as the file system reports it (no space, no permission).
    """
    mark = _unique()
    temporary = path.with_name(f".{path.name}.tmp-{mark}")
    replaced = path.with_name(f".{path.name}.old-{mark}")
    temporary.mkdir()
    try:
        yield temporary
        fsync_tree(temporary)
        if path.exists():
            path.rename(replaced)
        temporary.rename(path)
    except BaseException:
        if replaced.exists():
            replaced.rename(path)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)
    fsync_path(path.parent)


def atomic_write_bytes(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path``, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """Return a JSON value or a pydantic record as JSON that ends in a line break.

    Raises:
        ValueError: The value holds NaN or infinity.
    """
    if isinstance(value, BaseModel):
        return value.model_dump_json(indent=indent) + "\n"
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """Write `json_text` of a value to a file, whole or not at all."""
    atomic_write_bytes(path, json_text(value, indent=indent).encode())


def fsync_path(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(folder: Path) -> None:
    """Flush a folder and everything in it to the disk."""
    for entry in (*folder.rglob("*"), folder):
        fsync_path(entry)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _unique() -> str:
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written, before hours are spent on what is to go there.

    Args:
        folder: Need not exist yet.

    Raises:
        EncoreError: The folder, or the nearest one above it that exists, takes no new file.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise EncoreError(
            f"{existing}: cannot be written ({error.strerror or error}); make it writable or work "
            "on a copy"
        ) from error
