"""A folder that appears whole or not at all, and that never takes the place of anything else."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from encore.errors import InputError
from encore.files import fsync_path


def refuse_occupied(out: Path, *, ours: Collection[str], force: bool) -> None:
    """Refuse a place that holds anything but a folder that we wrote.

    Args:
        out: The place.
        ours: The names in a folder that we wrote: exactly these.
        force: Whether such a folder may be replaced.

    Raises:
        InputError: What is there, and what to do.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError(f"--dataset {out}: there is a file of this name; name a new folder")
    names = {path.name for path in out.iterdir()}
    if names and names != set(ours):
        raise InputError(
            f"--dataset {out}: this folder has other things in it; name a new or empty one"
        )
    if names and not force:
        raise InputError(
            f"--dataset {out}: there is a data set already; name another folder, or give --force"
        )


@contextlib.contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """An empty folder beside ``out`` that takes its place when the block has succeeded.

    After an error, Ctrl-C included, what was at ``out`` is there as before.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    mark = f"{os.getpid()}-{secrets.token_hex(4)}"
    folder = out.with_name(f".{out.name}.tmp-{mark}")
    old = out.with_name(f".{out.name}.old-{mark}")
    folder.mkdir()
    try:
        yield folder
        for path in (*folder.rglob("*"), folder):
            fsync_path(path)
        if out.exists():
            out.rename(old)
        folder.rename(out)
    except BaseException:
        if old.exists():
            old.rename(out)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    fsync_path(out.parent)
