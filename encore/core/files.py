"""Write files whole or not at all: temporary name, fsync, rename."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from encore.core.errors import EncoreError
from encore.core.folder_watches import tell_changed
from encore.core.leftovers import remove_leftovers, unique_suffix


def remove_file(path: Path) -> None:
    """Remove a file if it is there, and tell the watches."""
    if path.exists():
        path.unlink(missing_ok=True)
        tell_changed(path)


@contextlib.contextmanager
def temporary_path(path: Path) -> Iterator[Path]:
    """Yield a new name beside ``path`` for an unfinished file, and remove that file at the end.

    What killed processes have left in the folder is removed before (`encore.core.leftovers`).
    The name starts with a dot and does not end in the suffix of ``path``, so neither the shell's
    globs nor ``*.parquet`` match it. The folder must exist.
    """
    remove_leftovers(path.parent)
    temporary = path.with_name(f".{path.name}.tmp-{unique_suffix()}")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def publish(temporary: Path, path: Path) -> None:
    """Rename a finished file to its final name, and flush file and folder to the disk."""
    fsync_path(temporary)
    temporary.replace(path)
    fsync_path(path.parent)
    tell_changed(path)


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; the file becomes ``path`` if the block succeeds.

    On any error, Ctrl-C included, the temporary file is removed and ``path`` stays as it was.

    Raises:
        OSError: The file system refused it (no space, no permission).
    """
    with temporary_path(path) as temporary:
        yield temporary
        publish(temporary, path)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; it becomes ``path`` if the block succeeds.

    An old folder at ``path`` is replaced by two renames. A crash between them leaves no folder of
    that name, and the old one beside it. On any error, Ctrl-C included, the temporary folder is
    removed and ``path`` stays as it was. The parent folder must exist.

    Raises:
        OSError: The file system refused it (no space, no permission).
    """
    remove_leftovers(path.parent)
    suffix = unique_suffix()
    temporary = path.with_name(f".{path.name}.tmp-{suffix}")
    replaced = path.with_name(f".{path.name}.old-{suffix}")
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
    tell_changed(path)


def atomic_write_bytes(path: Path, data: bytes) -> None:
    """Write bytes to a file, whole or not at all."""
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
    """Write `json_text` of a value to a file, whole or not at all.

    Half a surrogate pair in a text is written as an escape, which JSON allows.
    """
    atomic_write_bytes(path, json_text(value, indent=indent).encode(errors="backslashreplace"))


def fsync_path(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(folder: Path) -> None:
    """Flush a folder and everything in it to the disk."""
    for path in (*folder.rglob("*"), folder):
        fsync_path(path)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_writable(folder: Path) -> None:
    """Check that a folder takes new files, before hours are spent on their content.

    Args:
        folder: The folder. If it does not exist, the nearest existing one above it is checked.

    Raises:
        EncoreError: No file can be created there.
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
