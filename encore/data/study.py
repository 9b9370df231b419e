"""A study: one directory with preference pairs, ratings, models and tables."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from encore.buckets.study_mirror import study_path
from encore.core.errors import EncoreError, InputError
from encore.core.file_lock import LockState, lock_descriptor
from encore.core.files import fsync_path, fsync_tree
from encore.core.folder_watches import tell_changed
from encore.core.leftovers import is_left_behind, unique_suffix
from encore.data.pairs_manifest import PairsManifest, ingested_labels, read_pairs_manifest

_MARKER = "study.json"
_MARKER_CONTENT = {"encore_study": 1}
#: Studies that `encore rules probe` makes of a study's pairs: STUDY/probes/PAIRS/NAME.
PROBES_DIR = "probes"
#: Labels of single responses (`encore labels`): STUDY/labels/KEY/labels.parquet.
LABELS_DIR = "labels"
#: A staging folder younger than this may belong to a process that is about to lock it.
_MIN_LEFTOVER_SECONDS = 60.0


@dataclass(frozen=True)
class Study:
    """An opened study. Get one from `open_study`.

    The manifests of its pairs are read once, at the first use. Code that ingests more pairs
    opens the study again to see them.

    Attributes:
        path: Directory of the study.
    """

    path: Path

    @property
    def pairs_dir(self) -> Path:
        """Return the folder of the preference pairs, their manifests and the records set aside."""
        return self.path / "pairs"

    @property
    def ratings_dir(self) -> Path:
        """Return the folder of the rating runs: one folder per run key."""
        return self.path / "ratings"

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Return the labels that the study has pairs for, sorted."""
        return ingested_labels(self.pairs_dir)

    @cached_property
    def sources(self) -> tuple[PairsManifest, ...]:
        """Return the manifests of the pairs, one per label, in the labels' order.

        Raises:
            InputError: A manifest is damaged.
        """
        return tuple(read_pairs_manifest(self.pairs_dir, label) for label in self.labels)

    @property
    def synthetic(self) -> tuple[str, ...]:
        """Return the names of the synthetic sources, e.g. ``source hh``.

        The marks of a rating run, a model or a judge are in their own manifests.
        """
        return tuple(f"source {source.label}" for source in self.sources if source.synthetic)


def open_study(path: str | Path) -> Study:
    """Open the study in a directory.

    >>> [source.label for source in open_study("study").sources]
    ['mine']

    Args:
        path: Directory of the study, as `encore ingest` made it, or its address in a bucket.

    Raises:
        InputError: The directory does not exist, is not a study, or is of another format.
    """
    path = study_path(path)
    marker = path / _MARKER
    if not marker.is_file():
        problem = f"not a study (no {_MARKER})" if path.exists() else "no such directory"
        raise InputError(
            f"study {path}: {problem}; name a study's directory, or make one with "
            f"`encore ingest {path} SOURCE`"
        )
    try:
        content = json.loads(marker.read_bytes())
    except ValueError:
        content = None
    if content != _MARKER_CONTENT:
        raise InputError(
            f"{marker}: damaged or of another version of encore, expected {_MARKER_CONTENT}; use "
            "the version that wrote it"
        )
    return Study(path)


def as_study(study: Study | str | Path) -> Study:
    """Return an opened study as it is, or open the study at a path.

    Raises:
        InputError: There is no study at the path.
    """
    return study if isinstance(study, Study) else open_study(study)


def is_study(path: Path) -> bool:
    """Return True if a directory is a study; its format is not checked.

    A text that is too long for a path, such as a query, is no study.
    """
    try:
        return (path / _MARKER).is_file()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def is_new_study(path: Path) -> bool:
    """Return True if nothing or an empty directory is at a path, False if a study is.

    Raises:
        InputError: Something else is there.
    """
    if is_study(path) or not path.exists():
        return not path.exists()
    if path.is_dir() and not any(path.iterdir()):
        return True
    kind = "a directory with other things in it" if path.is_dir() else "a file"
    raise InputError(f"study {path}: there is {kind} at this path; name a new or empty directory")


@dataclass(frozen=True, slots=True)
class Change:
    """New files of a study, written to a staging folder and moved to their places together.

    Attributes:
        folder: Staging folder, in the study or beside the new study.
        study: The study before the change; None if it does not exist yet.
        staged: Paths of the new files, relative to the study, in the order in which they are
            moved. A path that is removed from the list is not moved.
    """

    folder: Path
    study: Study | None
    staged: list[str] = field(default_factory=list)

    def path(self, relative: str) -> Path:
        """Stage a file and return the path to write it to.

        Args:
            relative: Path of the file in the study. Files are moved in the order of these calls.
        """
        self.staged.append(relative)
        path = self.folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


@contextlib.contextmanager
def changed_study(path: Path) -> Iterator[Change]:
    """Change the study at ``path`` completely or not at all.

    A new study appears by one rename. An existing study is locked against a second change. Its
    new files are moved to their places when the block has succeeded; if a move fails, the earlier
    files are restored. After an error or Ctrl-C an existing study is as before, and a new one
    does not exist.

    Raises:
        InputError: Something other than a study is at the path.
        EncoreError: Another process is changing this study.
    """
    if is_new_study(path):
        ancestor = next(parent for parent in path.absolute().parents if parent.is_dir())
        with _staging_folder(ancestor, name=path.absolute().name) as folder:
            yield Change(folder, study=None)
            _move_new_study(folder, path)
    else:
        study = open_study(path)
        with _locked(path), _staging_folder(path, name="change") as folder:
            change = Change(folder, study=study)
            yield change
            _move_staged_files(change, study)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[LockState]:
    """Hold a folder's lock. The operating system releases it if the process is killed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        state = lock_descriptor(descriptor, folder=folder.parent)
        if state == "busy":
            raise EncoreError(
                f"study {folder}: another process is changing it; wait for it and run this again"
            )
        yield state
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _staging_folder(parent: Path, *, name: str) -> Iterator[Path]:
    """Make a locked folder and remove it at the end; also remove folders of killed processes."""
    for leftover in parent.glob(f".{glob.escape(name)}.tmp-*"):
        with contextlib.suppress(OSError, EncoreError):
            is_dead = is_left_behind(leftover)
            if is_dead or time.time() - leftover.stat().st_mtime > _MIN_LEFTOVER_SECONDS:
                with _locked(leftover) as state:
                    if is_dead or state == "held":
                        shutil.rmtree(leftover)
    folder = parent / f".{name}.tmp-{unique_suffix()}"
    folder.mkdir()
    with _locked(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _move_new_study(folder: Path, path: Path) -> None:
    """Make a staging folder the study at a path."""
    (folder / _MARKER).write_text(json.dumps(_MARKER_CONTENT) + "\n", encoding="utf-8")
    fsync_tree(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.rename(path)
    except OSError as error:
        if path.is_dir() and any(path.iterdir()):
            raise EncoreError(
                f"study {path}: another process made it in the meantime; run the command again"
            ) from error
        raise
    fsync_path(path.parent)
    tell_changed(path)


def _move_staged_files(change: Change, study: Study) -> None:
    """Move the staged files into the study; after an error, restore the earlier files."""
    fsync_tree(change.folder)
    moved: list[tuple[Path, Path | None]] = []  # each target with the link to its earlier file
    try:
        for index, relative in enumerate(change.staged):
            target = study.path / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            backup = change.folder / f"replaced-{index}" if target.exists() else None
            moved.append((target, backup))
            if backup is not None:
                os.link(target, backup)
            (change.folder / relative).replace(target)
    except BaseException:
        for target, backup in reversed(moved):
            if backup is None:
                target.unlink(missing_ok=True)
            elif backup.exists():
                backup.replace(target)
        raise
    for folder in {(study.path / relative).parent for relative in change.staged}:
        fsync_path(folder)
    tell_changed(*(study.path / relative for relative in change.staged))
