"""What is known of a study's local copy: which content of the bucket each file has.

The record is a file of lines that are only added, so that a killed process damages nothing:

    ["pairs/hh.parquet"]                            changed here, and not in the bucket yet
    ["pairs/hh.parquet", "ETAG", 1234, 17…]         the same as the object with this tag
    ["pairs/hh.parquet", null]                      neither here nor in the bucket
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

#: A line of the record, as the module describes it.
Row = Sequence[str | int | None]


class Copied(NamedTuple):
    """One file that is the same here and in the bucket.

    Attributes:
        e_tag: The store's tag of the object.
        size: Size of the file in bytes.
        mtime_ns: Time of the file's last change when it was copied.
    """

    e_tag: str
    size: int
    mtime_ns: int


class MirrorRecord:
    """The record of one local copy. Threads share it; several processes add to the file.

    Attributes:
        copied: The files that are the same here and in the bucket, by name.
        waiting: Names of files that this process has to send, in the order of their last changes.
        waiting_elsewhere: Names of files that other processes have to send.
    """

    def __init__(self, folder: Path, path: Path, *, is_alone: bool) -> None:
        """Read a record.

        Args:
            folder: Folder of the local copy.
            path: File of the record, which need not exist.
            is_alone: True if no other process uses it: this one sends what killed ones did not.
        """
        self.copied: dict[str, Copied] = {}
        self.waiting: dict[str, None] = {}
        self.waiting_elsewhere: dict[str, None] = {}
        self._folder, self._path = folder, path
        self._lock = threading.RLock()
        self.load()
        if is_alone:
            self.waiting, self.waiting_elsewhere = self.waiting_elsewhere, {}

    def load(self) -> None:
        """Read the record again, with what other processes have added."""
        copied: dict[str, Copied] = {}
        unsent: dict[str, None] = {}
        with self._lock:
            lines = self._path.read_bytes().splitlines() if self._path.exists() else []
            for line in lines:
                with suppress(ValueError, TypeError):  # a line that a kill has cut
                    _note(json.loads(line), copied, unsent)
            self.copied = copied
            self.waiting_elsewhere = {name: None for name in unsent if name not in self.waiting}

    def add_waiting(self, names: Iterable[str]) -> None:
        """Record files that this process wrote or removed, and has to send."""
        self._add([[name] for name in names])

    def add_copied(self, name: str, copied: Copied | None) -> None:
        """Record that a file is the same here and in the bucket, or is in neither of them.

        A file that has changed since then waits again.

        Args:
            name: Name of the file.
            copied: State of the file when it was copied; None if it was in neither of them.
        """
        path = self._folder / name
        with self._lock:
            self._add([[name, *(copied or (None,))]])
            mtime_ns = path.stat().st_mtime_ns if path.is_file() else None
            if mtime_ns != (copied and copied.mtime_ns):
                self._add([[name]])

    def _add(self, rows: Sequence[Row]) -> None:
        with self._lock:
            with self._path.open("a", encoding="utf-8") as file:
                lines = [json.dumps(row) + "\n" for row in rows]
                file.write("\n" + "".join(lines))  # after a line that a kill has cut
            for row in rows:
                _note(row, self.copied, self.waiting)


def _note(row: Any, copied: dict[str, Copied], unsent: dict[str, None]) -> None:
    """Take a row of the record.

    Raises:
        ValueError: It is none.
    """
    name, *values = row
    if not isinstance(row, list) or not isinstance(name, str) or len(values) not in (0, 1, 3):
        raise ValueError(row)
    unsent.pop(name, None)
    if not values:
        unsent[name] = None
    elif len(values) == 1:
        copied.pop(name, None)
    else:
        copied[name] = Copied(*values)
