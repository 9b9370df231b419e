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

from encore.core.leftovers import unique_suffix

#: A record of this many lines more than files is written anew.
_MAX_OLD_LINES = 10_000


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
    """The record of one local copy. Threads may share it; several processes add to the file.

    Attributes:
        copied: The files that are the same here and in the bucket, by name.
        unsent: Names of files that were changed or removed here and are not in the bucket yet, in
            their order.
    """

    def __init__(self, path: Path) -> None:
        """Take the file of the record, which need not exist."""
        self.copied: dict[str, Copied] = {}
        self.unsent: dict[str, None] = {}
        self._path = path
        self._lock = threading.Lock()

    def load(self) -> None:
        """Read the record, with what other processes have added."""
        with self._lock:
            self.copied, self.unsent = {}, {}
            num_lines = 0
            with suppress(FileNotFoundError), self._path.open("rb") as lines:
                for line in lines:
                    num_lines += 1
                    with suppress(ValueError, TypeError):  # a line that a kill has cut
                        self._note(json.loads(line))
            if num_lines > len(self.copied) + len(self.unsent) + _MAX_OLD_LINES:
                temporary = self._path.with_name(f".{self._path.name}.tmp-{unique_suffix()}")
                rows: list[list[str | int | None]] = [
                    [name, *copied] for name, copied in self.copied.items()
                ]
                rows += [[name] for name in self.unsent]
                temporary.write_text("".join(map(_line, rows)), encoding="utf-8")
                temporary.replace(self._path)

    def add_unsent(self, names: Iterable[str]) -> None:
        """Record files that were changed or removed here."""
        self._add([[name] for name in names])

    def add_copied(self, name: str, copied: Copied) -> None:
        """Record a file that is now the same here and in the bucket."""
        self._add([[name, *copied]])

    def forget(self, name: str) -> None:
        """Record that a file is neither here nor in the bucket."""
        self._add([[name, None]])

    def _add(self, rows: list[list[str | int | None]]) -> None:
        with self._lock:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n" + "".join(map(_line, rows)))  # after a line that a kill has cut
            for row in rows:
                self._note(row)

    def _note(self, row: Any) -> None:
        """Take a line of the record.

        Raises:
            ValueError: It is none.
        """
        name, *values = row
        if not isinstance(row, list) or not isinstance(name, str) or len(values) not in (0, 1, 3):
            raise ValueError(row)
        if not values:
            self.unsent[name] = None
            return
        self.unsent.pop(name, None)
        if len(values) == 1:
            self.copied.pop(name, None)
        else:
            e_tag, size, mtime_ns = values
            self.copied[name] = Copied(str(e_tag), int(size or 0), int(mtime_ns or 0))


def _line(row: Sequence[str | int | None]) -> str:
    return json.dumps(row) + "\n"
