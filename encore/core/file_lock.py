"""Locks of files between processes, also where the file system has none.

Some file systems refuse locks (Lustre without ``-o flock``, some network mounts). There the work
goes on without one: it is written whole or not at all, so work that is done twice is waste, no
damage. A marker file in place of a lock would outlive a lost machine, and be waited for for ever.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

logger = logging.getLogger(__name__)

#: ``busy``: another process holds it. ``unsupported``: the file system has no locks.
LockState = Literal["held", "busy", "unsupported"]

_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})
_warned_folders: set[Path] = set()


@contextlib.contextmanager
def file_lock(path: Path, *, timeout_seconds: float = -1) -> Iterator[LockState]:
    """Hold the lock of a file during the block, if it can be had.

    The operating system releases the lock even when its holder is killed.

    Args:
        path: The file, which is made.
        timeout_seconds: Time to wait for another process; negative waits as long as it takes.
    """
    lock = FileLock(path, timeout=timeout_seconds, fallback_to_soft=False)
    try:
        lock.acquire()
        state: LockState = "held"
    except Timeout:
        state = "busy"
    except OSError as error:
        state = _without_lock(error, path.parent)
    try:
        yield state
    finally:
        lock.release()


def lock_descriptor(descriptor: int, *, folder: Path) -> LockState:
    """Lock an open file or folder until it is closed, without waiting.

    Args:
        descriptor: Descriptor of the open file or folder.
        folder: Its folder, for a warning.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "busy"
    except OSError as error:
        return _without_lock(error, folder)
    return "held"


def _without_lock(error: OSError, folder: Path) -> LockState:
    """Warn once that a folder's file system has no locks.

    Raises:
        OSError: The error is another one.
    """
    if error.errno not in _NO_LOCKS:
        raise error
    if folder not in _warned_folders:
        _warned_folders.add(folder)
        logger.warning(
            "%s: the file system has no locks (%s); two processes that work there at once may do "
            "the same work twice",
            folder,
            error.strerror,
        )
    return "unsupported"
