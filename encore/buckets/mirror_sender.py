"""Send the changed files of a study's local copy to its bucket, in a thread beside the work.

Files are sent in the order in which they were written, so that a process that is killed at any
point leaves a consistent study. Files of shards are sent several at a time. Files that replace
others together (a label that is ingested again) are first written as one archive, which is there
whole or not at all. Who finds an archive finishes the sending of its files.

While the store does not answer, the work goes on, and the files are sent later.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from zipfile import ZipFile

from encore.buckets.bucket_store import BucketStore
from encore.buckets.mirror_record import Copied, MirrorRecord
from encore.core.errors import EncoreError
from encore.core.file_lock import file_lock
from encore.core.leftovers import unique_suffix

if TYPE_CHECKING:
    from obstore import ObjectMeta

logger = logging.getLogger(__name__)

#: File that makes a folder a study.
STUDY_MARKER = "study.json"
#: Names that carry the digest of their content.
IMMUTABLE = re.compile(r"(^|/)shard-\d{5,}\.[0-9a-f]{32}\.parquet$")
#: Files of one shard: the order among shards does not matter.
_OF_SHARD = re.compile(r"(^|/)(shard|took|failed)-\d{5,}\.[^/]+$")
_ARCHIVES = re.compile(r"\.push/[^/]+\.zip")
#: File of an archive with the names of files that its process removed.
_REMOVED = ".removed.json"
_NUM_SENDERS = 8
#: Pause before another attempt while the store refuses.
_PAUSE_SECONDS = 30.0


class MirrorSender:
    """Sends what waits in a record."""

    def __init__(self, store: BucketStore, path: Path, record: MirrorRecord, *, lock: Path) -> None:
        """Take the bucket, the folder of the copy, its record, its lock. Nothing is sent yet."""
        self._store, self._path, self._record, self._lock = store, path, record, lock
        self._thread = ThreadPoolExecutor(1, "bucket-sender")
        self._archive = f".push/{unique_suffix()}.zip"
        self._has_archive = False
        self._error: Exception | None = None
        self._paused_until = 0.0

    def send_soon(self) -> None:
        """Send what waits, beside the work."""
        self._thread.submit(self._send_waiting)

    def close(self) -> Exception | None:
        """Send what waits, and return the error if that is not possible."""
        self._paused_until = 0.0
        self._thread.submit(self._send_waiting).result()
        self._thread.shutdown()
        return self._error

    def finish_interrupted(self, objects: Mapping[str, ObjectMeta]) -> Mapping[str, ObjectMeta]:
        """Send the files of the archives of killed processes.

        Args:
            objects: The objects of the bucket.

        Returns:
            The objects of the bucket after that.
        """
        archives = [name for name in objects if _ARCHIVES.fullmatch(name)]
        for archive in archives:
            with suppress(FileNotFoundError), TemporaryDirectory(dir=self._lock.parent) as folder:
                self._store.download(archive, Path(folder, "archive.zip"))
                with ZipFile(Path(folder, "archive.zip")) as files:
                    files.extractall(folder)
                    names = files.namelist()
                for name in names:
                    if self._store.head(archive) is None:  # its process has finished the sending
                        break
                    if name != _REMOVED:
                        self._store.put(name, Path(folder, name))
                for name in json.loads(Path(folder, _REMOVED).read_bytes()):
                    self._store.remove(name)
                self._store.remove(archive)
        return self._store.objects() if archives else objects

    def _send_waiting(self) -> None:
        """Send what waits, until nothing does or the store refuses."""
        if time.monotonic() < self._paused_until:
            return
        try:
            while self._record.waiting:
                with file_lock(self._lock):
                    groups = groupby([*self._record.waiting], key=_is_of_shard)
                    are_of_shards, names = next(groups, (True, ()))
                    self._send([*names], are_of_shards=are_of_shards)
            self._error = None
        except (EncoreError, OSError) as error:
            if self._error is None:
                logger.warning("%s; the work goes on, and the files are sent later", error)
            self._error = error
            self._paused_until = time.monotonic() + _PAUSE_SECONDS

    def _send(self, names: Sequence[str], *, are_of_shards: bool) -> None:
        """Send files that wait. What was written is there before what was removed is removed."""
        num_replaced = sum(name in self._record.copied for name in names)
        if not are_of_shards and (num_replaced > 1 or STUDY_MARKER in names or self._has_archive):
            self._put_archive(names)
        written = [name for name in names if (self._path / name).exists()]
        with ThreadPoolExecutor(_NUM_SENDERS) as pool:
            send_each = pool.map if are_of_shards else map  # else none is sent after an error
            for some_names in (written, {*names} - {*written}):
                list(send_each(self._send_file, some_names))
        if self._has_archive and not are_of_shards:
            self._store.remove(self._archive)
            self._has_archive = False

    def _send_file(self, name: str) -> None:
        """Write one file to the bucket, or remove it there if it is gone here."""
        path = self._path / name
        try:
            status = path.stat()
        except FileNotFoundError:
            self._store.remove(name)
            self._record.add_copied(name, None)
            return
        is_immutable = IMMUTABLE.search(name) is not None
        try:
            e_tag = self._store.put(name, path, only_new=is_immutable)["e_tag"]
        except FileExistsError:
            e_tag = (self._store.head(name) or {"e_tag": None})["e_tag"]
        self._record.add_copied(name, Copied(str(e_tag), status.st_size, status.st_mtime_ns))

    def _put_archive(self, names: Sequence[str]) -> None:
        """Write several files to the bucket as one object, whole or not at all."""
        is_new = STUDY_MARKER in names and STUDY_MARKER not in self._record.copied
        if is_new and not self._has_archive and self._store.head(STUDY_MARKER) is not None:
            raise EncoreError(
                f"study {self._store.url}: another process made it in the meantime; the new files "
                f"stay in {self._path}/: move them away, then run the command again"
            )
        written = [name for name in names if (self._path / name).is_file()]
        with TemporaryDirectory(dir=self._lock.parent) as folder:
            with ZipFile(Path(folder, "archive.zip"), "w", strict_timestamps=False) as files:
                for name in written:
                    files.write(self._path / name, name)
                files.writestr(_REMOVED, json.dumps([*{*names} - {*written}]))
            self._store.put(self._archive, Path(folder, "archive.zip"))
        self._has_archive = True


def _is_of_shard(name: str) -> bool:
    return _OF_SHARD.search(name) is not None
