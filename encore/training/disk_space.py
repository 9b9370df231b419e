"""Check the free disk space before large writes, and report a full disk in one line."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from encore.core.errors import NO_ROOM, EncoreError

#: Extra free space for headers, JSON files, logs and writes of other processes.
_SPARE_BYTES = 16 << 20


class NoRoomError(EncoreError):
    """The disk has too little space for a write. No incomplete file is left on it."""


def check_free_space(folder: Path, num_bytes: int, *, purpose: str) -> None:
    """Raise if the disk has too little free space for a write.

    Args:
        folder: Folder on the disk to check; it need not exist yet.
        num_bytes: Size of the write in bytes.
        purpose: Name of the written thing for the message, e.g. ``the checkpoint of step 100``.

    Raises:
        NoRoomError: The free space is less than the size and 16 MiB to spare.
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
def report_full_disk(folder: Path, *, purpose: str, kept_work: str) -> Iterator[None]:
    """Turn the error of a full disk inside the block into one line. Other errors are not changed.

    Args:
        folder: Folder of the written files.
        purpose: Name of the written thing, for the message.
        kept_work: Sentence that says which finished work is kept, for the message.

    Raises:
        NoRoomError: The disk is full.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        # Safetensors reports the system's error number only in its message.
        error_number = re.search(r"(?:Errno|os error|code:) (\d+)", str(error))
        if error_number is None or int(error_number[1]) not in NO_ROOM:
            raise
        raise NoRoomError(
            f"{folder}: the disk was full while {purpose} was written; {kept_work}; make room and "
            "run the same command again"
        ) from error
