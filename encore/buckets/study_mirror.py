"""A study in a bucket: the bucket holds the truth, commands work on a local copy of it.

`study_path` opens an address: it makes the copy the same as the bucket and returns its folder. From
then on every file that is written whole in the folder (`encore.core.files`) is copied into the
bucket by `encore.buckets.mirror_sender`, in the order in which it was written. `sending_studies`
waits for that at the end of a command.

Only what this module was told of is sent. A file of the copy that differs from its record for
another reason is damaged, and is read from the bucket again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from encore.buckets.bucket_store import BucketStore, bucket_url
from encore.buckets.driver_claim import DriverClaim
from encore.buckets.mirror_record import Copied, MirrorRecord
from encore.buckets.mirror_sender import IMMUTABLE, STUDY_MARKER, MirrorSender
from encore.core.bucket_addresses import bucket_addresses
from encore.core.errors import EncoreError, EveryShardError, InputError
from encore.core.file_lock import file_lock
from encore.core.files import temporary_path
from encore.core.folder_watches import folder_watches
from encore.core.settings import load_settings

if TYPE_CHECKING:
    from obstore import ObjectMeta

logger = logging.getLogger(__name__)

_NUM_READERS = 16
#: Number of files to read from which on people are told.
_MANY_FILES = 200
#: Files that stay on the machine: locks, replies that no shard has yet, MLflow's store, states of
#: a training. Hidden names too, but for the records of a recipe's steps.
_LOCAL = re.compile(
    r"(^|/)(locks|engines)/|(^|/)replies-\d+\.jsonl$|^mlflow|^training/.*/(checkpoints|embeddings)/"
    r"|(^|/)\.(?![^/]+\.made\.json$)"
)
_MODEL = re.compile(r"^training/.*/model/|^exports/")


def study_path(study: str | Path) -> Path:
    """Return the folder of a study; that of an address is a local copy, made current by the call.

    Args:
        study: A local path, or an address such as ``s3://bucket/my-study``.

    Raises:
        InputError: The address is wrong, or something other than a study is there.
        EncoreError: The bucket cannot be read.
    """
    if (url := bucket_url(study)) is None:
        return Path(study)
    mirrors = [watch for watch in folder_watches if isinstance(watch, StudyMirror)]
    mirror = next((mirror for mirror in mirrors if mirror.url == url), None) or StudyMirror(url)
    mirror.pull()
    return mirror.path


class StudyMirror:
    """The local copy of a study in a bucket.

    Attributes:
        url: Address of the study.
        path: Folder of the study on this machine. It does not exist while there is no study.
    """

    def __init__(self, url: str) -> None:
        """Take the study's address in its normal form. Nothing is read yet."""
        settings = load_settings()
        self.url, self._has_models = url, settings.bucket_models
        digest = hashlib.sha256(url.encode()).hexdigest()[:16]
        self._folder = settings.cache_folder / "studies" / digest
        self.path = self._folder / "files" / url.rpartition("/")[2]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._store = BucketStore(url)
        self._in_use = ExitStack()
        state = self._in_use.enter_context(
            file_lock(self._folder / "in-use.lock", timeout_seconds=0)
        )
        self._record = MirrorRecord(
            self.path, self._folder / "record.jsonl", is_alone=state != "busy"
        )
        # Held while files are copied, here or there: what the record says of them is true.
        self._lock = self._folder / "copying.lock"
        self._sender = MirrorSender(self._store, self.path, self._record, lock=self._lock)
        self._claims: dict[Path, DriverClaim] = {}
        self._has_changed = False
        self._has_local_models = False
        folder_watches.append(self)
        bucket_addresses[str(self.path)] = url

    def pull(self) -> None:
        """Make the local copy the same as the bucket, but for what was changed here.

        Manifests are read after the data that they describe, the study's marker last.

        Raises:
            InputError: Something other than a study is at the address.
            EncoreError: The bucket cannot be read.
        """
        with file_lock(self._lock):
            objects = self._sender.finish_interrupted(self._store.objects(self._record.copied))
            self._record.load()
            shared = {name: objects[name] for name in self._shared_names(objects)}
            self._check_is_study(shared)
            unsent = self._record.waiting.keys() | self._record.waiting_elsewhere.keys()
            for name in self._record.copied.keys() - objects.keys() - unsent:
                (self.path / name).unlink(missing_ok=True)
                self._record.add_copied(name, None)
            changed = [name for name in shared if not self._is_current(name, shared[name])]
            if len(changed) >= _MANY_FILES:
                logger.warning("reading %s files of %s", f"{len(changed):,}", self.url)
            with ThreadPoolExecutor(_NUM_READERS) as pool:
                for _, names in groupby(sorted(changed, key=_order), key=_rank):
                    list(pool.map(lambda name: self._fetch(name, shared[name]), names))
        self._sender.send_soon()  # what a killed process left

    def changed(self, paths: Sequence[Path]) -> None:
        """Send files and folders that were written or removed.

        Raises:
            EveryShardError: Another process took over the run that they belong to.
        """
        for folder, claim in self._claims.items():
            if claim.is_lost and any(path.is_relative_to(folder) for path in paths):
                raise EveryShardError(claim.lost_error)
        names = [name for path in paths for name in self._names_at(path)]
        shared = self._shared_names(names)
        self._has_local_models |= any(map(_MODEL.match, {*names} - {*shared}))
        if shared:
            self._has_changed = True
            self._record.add_waiting(shared)
            self._sender.send_soon()

    def claim(self, folder: Path, part: str) -> None:
        """Claim a run of the study, or a part of it, for this process.

        Raises:
            EncoreError: Another process works on it, or the bucket cannot be written.
        """
        if folder.is_relative_to(self.path) and folder not in self._claims:
            name = folder.relative_to(self.path).as_posix()
            self._claims[folder] = DriverClaim(self._store, name, part=part)

    def close(self) -> None:
        """Send what is not sent yet, and give up the claims.

        Raises:
            EncoreError: Files of this process could not be copied; they are kept.
        """
        try:
            error = self._sender.close()
        finally:
            self._in_use.close()
            for claim in self._claims.values():
                claim.release()
        if self._has_local_models:
            logger.warning(
                "models of %s stay on this machine, in %s/; with ENCORE_BUCKET_MODELS=true they "
                "are copied to the bucket",
                self.url,
                self.path,
            )
        if error is not None:
            message = (
                f"{len(self._record.waiting):,} new files are not in {self.url} yet ({error}); "
                f"they are kept in {self.path}/, and the same command sends them"
            )
            if self._has_changed:
                raise EncoreError(message) from error
            logger.warning("%s", message)

    def _check_is_study(self, shared: Mapping[str, ObjectMeta]) -> None:
        """Refuse a folder of a bucket that holds something else, or has lost its study."""
        if STUDY_MARKER in shared:
            return
        if shared:
            raise InputError(
                f"study {self.url}: other things are at this address ({min(shared)}) and no "
                f"{STUDY_MARKER}; name a study's address, or a new one for `encore ingest`"
            )
        if STUDY_MARKER in self._record.copied:
            raise InputError(
                f"study {self.url}: it was removed from the bucket; to begin a new one, delete "
                f"the local copy, too: {self._folder}"
            )

    def _shared_names(self, names: Iterable[str]) -> list[str]:
        """Return the names of files that belong in the bucket, without placeholders of folders."""
        candidates = [
            name
            for name in names
            if not _LOCAL.search(name) and (self._has_models or not _MODEL.match(name))
        ]
        folders = {name.rpartition("/")[0] for name in candidates}
        return [name for name in candidates if name not in folders]

    def _names_at(self, path: Path) -> list[str]:
        """Return the names of a file, or of all files in a folder; also of those removed."""
        if not path.is_relative_to(self.path):
            return []
        if path.is_file():
            return [path.relative_to(self.path).as_posix()]
        files = {file for file in path.rglob("*") if file.is_file()}
        files |= {self.path / name for name in self._record.copied}
        return sorted(
            (file.relative_to(self.path).as_posix() for file in files if file.is_relative_to(path)),
            key=_order,
        )

    def _is_current(self, name: str, stored: ObjectMeta) -> bool:
        """Return True if a file need not be read from the bucket."""
        copied, path = self._record.copied.get(name), self.path / name
        if name in self._record.waiting_elsewhere:
            return True
        if name in self._record.waiting:
            is_same_object = copied is not None and copied.e_tag == str(stored["e_tag"])
            if is_same_object or (IMMUTABLE.search(name) and path.is_file()):
                return True
            logger.warning("%s was changed in %s meanwhile, and is read again", name, self.url)
        try:
            status = path.stat()
        except FileNotFoundError:
            return False
        return copied == (str(stored["e_tag"]), status.st_size, status.st_mtime_ns)

    def _fetch(self, name: str, stored: ObjectMeta) -> None:
        """Read one file from the bucket. Its time is that of the store."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        mtime_ns = int(stored["last_modified"].timestamp() * 1e9)
        with temporary_path(path) as temporary:
            try:
                self._store.download(name, temporary)
            except FileNotFoundError:  # removed since it was listed
                return
            os.utime(temporary, ns=(mtime_ns, mtime_ns))
            status = temporary.stat()
            temporary.replace(path)
        self._record.add_copied(
            name, Copied(str(stored["e_tag"]), status.st_size, status.st_mtime_ns)
        )


def _rank(name: str) -> tuple[bool, bool]:
    """Return the order in which files are read and sent: data, manifests, the study's marker."""
    return (name == STUDY_MARKER, name.endswith(".json"))


def _order(name: str) -> tuple[bool, bool, str]:
    """Return the order of names within `_rank`, too."""
    return (*_rank(name), name)
