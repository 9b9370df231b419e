"""Names of unfinished files and scratch folders, and the removal of those of killed processes.

A name ends in the process's id, a tag of its machine and a random part. So a later call can tell
what a killed process has left from what a living one is writing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

#: What another machine has left is removed when it is older than this.
_MAX_AGE_SECONDS = 24 * 3600.0
_UNFINISHED = re.compile(r"\..+\.(?:tmp|old)-(\d+)-([0-9a-f]{8})[0-9a-f]{8}")
_SCRATCH = re.compile(r"-(\d+)-([0-9a-f]{8})[0-9a-f]{8}")
#: Folders that this process has looked through.
_seen_folders: set[Path] = set()


def unique_suffix() -> str:
    """Return the end of a name that no other process gives."""
    return f"{os.getpid()}-{this_machine()}{secrets.token_hex(4)}"


def remove_leftovers(folder: Path) -> None:
    """Remove the unfinished files and folders in a folder that killed processes have left.

    A process looks through a folder once. What cannot be removed stays.
    """
    if folder in _seen_folders:
        return
    _seen_folders.add(folder)
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - a folder may hold 100,000 shards
            if name.startswith(".") and is_left_behind(path := folder / name):
                _remove(path)


def is_left_behind(path: Path) -> bool:
    """Return True for an unfinished file or folder whose process is dead.

    A folder that was moved aside stays while nothing is in its place: it is the only copy.
    """
    if (match := _UNFINISHED.fullmatch(path.name)) is None:
        return False
    final_path = path.with_name(path.name[1 : path.name.rindex(".", 0, match.start(1))])
    if ".old-" in path.name and not final_path.exists():
        return False
    return _is_dead(path, int(match[1]), machine_tag=match[2])


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """Make a folder for temporary files and remove it at the end, with those of killed processes.

    Args:
        prefix: Beginning of the names of such folders; it ends with a hyphen.
    """
    folder = new_scratch_folder(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_scratch_folder(prefix: str) -> Path:
    """Make a folder for temporary files, and remove those that dead processes have left.

    Args:
        prefix: Beginning of the names of such folders; it ends with a hyphen.
    """
    parent = Path(tempfile.gettempdir())
    for leftover in parent.glob(f"{prefix}*"):
        match = _SCRATCH.fullmatch(leftover.name, len(prefix) - 1)
        process_id, machine_tag = (int(match[1]), match[2]) if match else (0, "")
        if _is_dead(leftover, process_id, machine_tag=machine_tag):
            _remove(leftover)
    folder = parent / f"{prefix}{unique_suffix()}"
    folder.mkdir(mode=0o700)
    return folder


def _is_dead(path: Path, process_id: int, *, machine_tag: str) -> bool:
    """Return True if the process that made a file is dead, or must be after so long a time."""
    try:
        status = path.lstat()
    except OSError:
        return False
    if status.st_uid != os.getuid():
        return False
    if machine_tag != this_machine():
        return time.time() - status.st_mtime > _MAX_AGE_SECONDS
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it belongs to somebody else
        return False
    with contextlib.suppress(OSError):  # another process may have the id by now
        return Path(f"/proc/{process_id}").stat().st_ctime > status.st_mtime + 1
    return False


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@cache
def this_machine() -> str:
    """Return eight hex digits for this machine, or this container: ids of processes hold there."""
    try:
        processes = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        processes = ""
    name = f"{socket.gethostname()} {processes}"
    return hashlib.sha256(name.encode()).hexdigest()[:8]
