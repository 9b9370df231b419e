"""Free disk space: checked before a run and before a checkpoint, recognised when it runs out."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from encore.core.errors import NO_ROOM, EncoreError

#: Headers, JSON and what else is written meanwhile (logs, other runs' notes).
_SPARE_BYTES = 16 << 20


class NoRoomError(EncoreError):
    """The disk cannot hold what is to be written; nothing half-written is left on it."""


def check_room(folder: Path, num_bytes: int, *, purpose: str) -> None:
    """Refuse a write that the disk has no room for.

    Args:
        folder: On the disk in question; need not exist yet.
        num_bytes: The size of what is to be written.
        purpose: Its name, for the message: ``the checkpoint of step 100``.

    Raises:
        NoRoomError: There is less free than that and a little to spare.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    if free < num_bytes + _SPARE_BYTES:
        raise NoRoomError(
            f"{folder}: {purpose} needs {num_bytes / 2**30:,.2f} GiB, the disk has "
            f"{free / 2**30:,.2f} GiB free; make room and run the same command again: finished "
            "checkpoints are kept"
        )


@contextlib.contextmanager
def named_when_full(folder: Path, *, purpose: str, kept: str) -> Iterator[None]:
    """Turn a write that failed for want of space into one line; other failures pass.

    Args:
        folder: Where it was written.
        purpose: What was written, for the message.
        kept: What is still there, for the message.

    Raises:
        NoRoomError: In place of the operating system's own error.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        # Safetensors names the system's error number only in words.
        found = re.search(r"(?:Errno|os error|code:) (\d+)", str(error))
        if found is None or int(found[1]) not in NO_ROOM:
            raise
        raise NoRoomError(
            f"{folder}: the disk was full while {purpose} was written; {kept}; make room and run "
            "the same command again"
        ) from error
