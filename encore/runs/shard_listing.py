"""The files of a run's shards, by a listing of the run's folder that is renewed seldom.

A listing takes time in proportion to the number of shards: 65 ms for 20,000 shards on a local disk,
seconds over a network. A process spends at most a twentieth of its time on it, so the work per
shard does not grow with their number. Therefore a file of another process is seen a little late.
It is never missed, however coarse the times of files are, because no time of a file decides.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections import defaultdict
from pathlib import Path

#: Five digits or more, so that names sort as numbers up to 100,000 shards.
SHARD_NAME = re.compile(r"shard-(\d{5,})\.([0-9a-f]{32})\.parquet")
_TEMPORARY_NAME = re.compile(r"\.[a-z]+-(\d{5,})\..+")
#: Time between two listings, as a multiple of the time that a listing takes.
_PAUSE_FACTOR = 20.0


class ShardListing:
    """The names of a run's shard files as last listed. Threads may share it."""

    def __init__(self, run_dir: Path) -> None:
        """Take the folder, which need not exist. Nothing is listed yet."""
        self._run_dir = run_dir
        self._names: dict[int, set[str]] = {}
        self._temporary_names: dict[int, set[str]] = {}
        self._renew_at = 0.0
        self._lock = threading.Lock()

    def renew(self, *, now: bool = False) -> None:
        """List the folder if it is time, or ``now``."""
        with self._lock:
            began = time.monotonic()
            if not (now or began >= self._renew_at):
                return
            names: dict[int, set[str]] = defaultdict(set)
            temporary_names: dict[int, set[str]] = defaultdict(set)
            with contextlib.suppress(FileNotFoundError), os.scandir(self._run_dir) as entries:
                for entry in entries:
                    if match := SHARD_NAME.fullmatch(entry.name):
                        names[int(match[1])].add(entry.name)
                    elif match := _TEMPORARY_NAME.fullmatch(entry.name):
                        temporary_names[int(match[1])].add(entry.name)
            self._names, self._temporary_names = dict(names), dict(temporary_names)
            ended = time.monotonic()
            self._renew_at = ended + _PAUSE_FACTOR * (ended - began)

    def add(self, index: int, path: Path) -> None:
        """Add a file of a shard that this process wrote."""
        with self._lock:
            self._names.setdefault(index, set()).add(path.name)

    def indices(self) -> set[int]:
        """Return the shards that have a file."""
        self.renew()
        return set(self._names)

    def files(self, index: int) -> list[Path]:
        """Return the files of a shard, the oldest first."""
        self.renew()
        paths = [self._run_dir / name for name in self._names.get(index, ())]
        if len(paths) < 2:
            return paths
        written_at: list[tuple[int, Path]] = []
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                written_at.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(written_at)]

    def temporary_files(self, index: int) -> list[Path]:
        """Return unfinished files of a shard, which a killed process may have left."""
        return [self._run_dir / name for name in self._temporary_names.pop(index, ())]
