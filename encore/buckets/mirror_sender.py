"""Send the changed files of a study's local copy to its bucket, in a thread beside the work.

Files are sent in the order in which they were written, so that a process that is killed at any
point leaves a consistent study. Shards are immutable and are sent several at a time. Files that
must change together (a label that is ingested again) are first written to a staging folder; a
small object then names them, and they are copied to their names. Who finds that object finishes
the copying.

While the store does not answer, the work goes on, and the files are sent later.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path

from encore.buckets.bucket_store import BucketObject, BucketStore
from encore.buckets.mirror_record import Copied, MirrorRecord
from encore.core.errors import EncoreError
from encore.core.leftovers import unique_suffix

logger = logging.getLogger(__name__)

#: File that makes a folder a study.
STUDY_MARKER = "study.json"
#: Folder of files that are about to get their names together.
STAGING = ".push"
#: Names that carry the digest of their content.
IMMUTABLE = re.compile(r"(^|/)shard-\d{5,}\.[0-9a-f]{32}\.parquet$")
#: Files of one shard: the order among shards does not matter.
_OF_SHARD = re.compile(r"(^|/)(shard|took|failed)-\d{5,}\.[^/]+$")
_NUM_SENDERS = 8
#: Pause before another attempt while the store refuses.
_PAUSE_SECONDS = 30.0

#: Names of files that are sent together or one after the other.
Unit = tuple[str, ...]


class MirrorSender:
    """Sends files of a local copy to its bucket."""

    def __init__(self, store: BucketStore, path: Path, record: MirrorRecord) -> None:
        """Take the bucket, the folder of the copy and its record. Nothing is sent yet."""
        self._store, self._path, self._record = store, path, record
        self._units: deque[Unit] = deque()
        self._wakes = threading.Condition()
        self._is_closing = False
        self._is_sending_own = False
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def send(self, names: Sequence[str]) -> None:
        """Record that files were written or removed here, and send them soon."""
        self._record.add_unsent(names)
        self._is_sending_own = True
        self._enqueue(tuple(names))

    def send_leftovers(self, names: Sequence[str]) -> None:
        """Send files that an earlier process did not send. A failure is only a warning."""
        self._enqueue(tuple(names))

    def waiting_names(self) -> frozenset[str]:
        """Return the names of files that this process is about to send."""
        with self._wakes:
            return frozenset(name for unit in self._units for name in unit)

    def close(self) -> None:
        """Wait until everything is sent.

        Raises:
            EncoreError: Files of this process could not be sent.
        """
        with self._wakes:
            self._is_closing = True
            self._wakes.notify_all()
        if self._thread is not None:
            self._thread.join()
        if not self._units:
            return
        names = {name for unit in self._units for name in unit}
        message = (
            f"{len(names):,} new files are not in {self._store.url} yet ({self._error}); they are "
            f"kept in {self._path}/, and the same command sends them"
        )
        if self._is_sending_own:
            raise EncoreError(message) from self._error
        logger.warning("%s", message)

    def finish_interrupted(self, objects: Mapping[str, BucketObject]) -> Mapping[str, BucketObject]:
        """Finish what a killed process has staged, and return the objects of the bucket then."""
        commits = [
            name for name in objects if name.startswith(f"{STAGING}/") and name.endswith(".json")
        ]
        commits = [name for name in commits if name.count("/") == 1]
        for commit in commits:
            try:
                staged = json.loads(self._store.read(commit))
            except FileNotFoundError:  # another process has finished it
                continue
            self._give_names(commit, staged["files"], staged["removed"])
        return self._store.objects() if commits else objects

    def _enqueue(self, unit: Unit) -> None:
        with self._wakes:
            self._units.append(unit)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._send_units, daemon=True, name="bucket-sender"
                )
                self._thread.start()
            self._wakes.notify_all()

    def _send_units(self) -> None:
        """Send units as they come, until the sender is closed."""
        while True:
            with self._wakes:
                self._wakes.wait_for(lambda: self._units or self._is_closing)
                if not self._units:
                    return
                batch = [*takewhile(_is_of_shards, self._units)] or [self._units[0]]
                is_last_attempt = self._is_closing
            try:
                self._send_batch(batch)
            except (EncoreError, OSError) as error:
                if self._error is None:
                    logger.warning("%s; the work goes on, and the files are sent later", error)
                self._error = error
                if is_last_attempt:
                    return
                with self._wakes:
                    self._wakes.wait_for(lambda: self._is_closing, timeout=_PAUSE_SECONDS)
                continue
            self._error = None
            with self._wakes:
                for _ in batch:
                    self._units.popleft()

    def _send_batch(self, batch: Sequence[Unit]) -> None:
        names = [*dict.fromkeys(name for unit in batch for name in unit)]
        with ThreadPoolExecutor(_NUM_SENDERS) as pool:
            if _is_of_shards(names):  # a shard's new file is there before the old one is removed
                written = [name for name in names if (self._path / name).exists()]
                for some_names in (written, {*names} - {*written}):
                    for _ in pool.map(self._send_file, some_names):
                        pass
            elif STUDY_MARKER in names or sum(name in self._record.copied for name in names) > 1:
                self._send_together(names, pool)
            else:
                for name in names:
                    self._send_file(name)

    def _send_file(self, name: str) -> None:
        """Write one file to the bucket, or remove it there if it is gone here."""
        path = self._path / name
        try:
            status = path.stat()
        except FileNotFoundError:
            self._store.remove(name)
            self._record.forget(name)
            return
        is_immutable = IMMUTABLE.search(name) is not None
        written = self._create(name, path) if is_immutable else self._store.write(name, path)
        self._note_copied(name, Copied(str(written.e_tag), status.st_size, status.st_mtime_ns))

    def _create(self, name: str, path: Path) -> BucketObject:
        """Write a shard unless it is there: its name carries the digest of its content."""
        try:
            return self._store.create(name, path)
        except FileExistsError:
            written = self._store.head(name)
        is_whole = written is not None and written.size == path.stat().st_size
        return written if written and is_whole else self._store.write(name, path)

    def _send_together(self, names: Sequence[str], pool: ThreadPoolExecutor) -> None:
        """Make several files appear in the bucket together, whenever this process is killed."""
        is_new = STUDY_MARKER in names and STUDY_MARKER not in self._record.copied
        if is_new and self._store.head(STUDY_MARKER) is not None:
            raise EncoreError(
                f"study {self._store.url}: another process made it in the meantime; the new files "
                f"stay in {self._path}/: move them away, then run the command again"
            )
        folder = f"{STAGING}/{unique_suffix()}"
        statuses = {name: path.stat() for name in names if (path := self._path / name).is_file()}
        removed = [name for name in names if name not in statuses]
        paths = {name: self._path / name for name in statuses}
        for _ in pool.map(lambda name: self._store.write(f"{folder}/{name}", paths[name]), paths):
            pass
        commit = f"{folder}.json"
        content = json.dumps({"files": [*statuses], "removed": removed})
        self._store.write(commit, content.encode())
        self._give_names(commit, [*statuses], removed)
        for name, status in statuses.items():
            written = self._store.head(name)
            if written is not None:
                sent = Copied(str(written.e_tag), status.st_size, status.st_mtime_ns)
                self._note_copied(name, sent)
        for name in removed:
            self._record.forget(name)

    def _give_names(self, commit: str, files: Sequence[str], removed: Sequence[str]) -> None:
        """Copy staged files to their names. Another process may do the same at once."""
        folder = commit.removesuffix(".json")
        for name in files:
            try:
                self._store.copy(f"{folder}/{name}", name)
            except FileNotFoundError:  # another process was faster
                continue
        for name in removed:
            self._store.remove(name)
        self._store.remove(commit)
        for name in files:
            self._store.remove(f"{folder}/{name}")

    def _note_copied(self, name: str, sent: Copied) -> None:
        """Record a file that was sent, unless it has changed again since."""
        self._record.add_copied(name, sent)
        path = self._path / name
        if path.is_file() and path.stat().st_mtime_ns != sent.mtime_ns:
            self._record.add_unsent([name])


def _is_of_shards(unit: Sequence[str]) -> bool:
    return all(map(_OF_SHARD.search, unit))
