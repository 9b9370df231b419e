"""`log.jsonl` of a training run: one record a step, none twice, cut back when a run resumes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from encore.files import atomic_write_bytes

logger = logging.getLogger(__name__)

#: What depends on the machine's mood, not on the run: two runs' logs are equal but for these.
UNREPEATABLE = frozenset({"seconds", "tokens_per_second", "mfu", "peak_memory_bytes"})


class StepLog:
    """Appends records to a file, each flushed to the operating system as it comes."""

    def __init__(self, path: Path) -> None:
        """Open ``path`` for appending; made if it is not there. Its folder must exist."""
        self._stream: IO[str] = path.open("a", encoding="utf-8")

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record as a line; not a number and infinity are refused."""
        self._stream.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        self._stream.flush()

    def sync(self) -> None:
        """Wait until everything is on the disk: before a checkpoint, which must not be ahead."""
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def __enter__(self) -> StepLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a log in order, up to the first line that is none; empty without a file.

    A killed process may leave half a line at the end.
    """
    if not path.exists():
        return []
    records: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            break
        records.append(record)
    return records


def cut_log(path: Path, *, step: int, has_every_step: bool) -> None:
    """Take the records after ``step`` off a log, whole lines only, by one rename.

    Args:
        path: The log; made if it is not there.
        step: The last one to keep.
        has_every_step: Whether a step that is missing up to there is worth a warning.
    """
    records = [record for record in read_log(path) if record["step"] <= step]
    if has_every_step and [record["step"] for record in records] != list(range(1, step + 1)):
        logger.warning(
            "%s has %d of the %d steps before the checkpoint: it was changed after it was written",
            path,
            len(records),
            step,
        )
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    atomic_write_bytes(path, "".join(lines).encode())
