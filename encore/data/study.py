"""A study: the directory that holds everything of one run, made and changed as a whole."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from encore.core.errors import EncoreError, InputError
from encore.core.files import fsync_path, fsync_tree
from encore.data.pairs_manifest import PairsManifest, ingested_labels, read_pairs_manifest

MARKER = "study.json"
#: Within a study, the studies that `encore rules probe` makes of its pairs: PROBES/PAIRS/NAME.
PROBES = "probes"
#: Within a study, labels of single responses (`encore labels`): LABELS/KEY/labels.parquet.
LABELS = "labels"
_MARKER_CONTENT = {"encore_study": 1}
#: A younger staging folder may belong to a process that is just about to lock it.
_LEFTOVER_SECONDS = 60.0


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
        """Folder of the preference pairs, their manifests and the records set aside."""
        return self.path / "pairs"

    @property
    def ratings_dir(self) -> Path:
        """Folder of the rating runs: one folder per run key."""
        return self.path / "ratings"

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Labels that the study has pairs for, sorted."""
        return ingested_labels(self.pairs_dir)

    @cached_property
    def sources(self) -> tuple[PairsManifest, ...]:
        """Manifests of the pairs, one per label, in the labels' order.

        Raises:
            InputError: A manifest is damaged.
        """
        return tuple(read_pairs_manifest(self.pairs_dir, label) for label in self.labels)

    @property
    def synthetic(self) -> tuple[str, ...]:
        """Names of the synthetic sources, e.g. ``source hh``; empty if all pairs are real.

        The marks of a rating run, a model or a judge are in their own manifests.
        """
        return tuple(f"source {source.label}" for source in self.sources if source.synthetic)


def open_study(path: Path) -> Study:
    """Open the study in a directory.

    Raises:
        InputError: The directory does not exist, is not a study, or is of another format.
    """
    marker = path / MARKER
    if not marker.is_file():
        problem = f"not a study (no {MARKER})" if path.exists() else "no such directory"
        raise InputError(
            f"study {path}: {problem}; name a study's directory, or make one with "
            f"`encore ingest SOURCE --out {path}`"
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
    """Return an opened study as it is, or open the study at a path."""
    return study if isinstance(study, Study) else open_study(Path(study))


def is_free(path: Path) -> bool:
    """Whether a study can be made here: nothing or an empty directory; False if one is here.

    Raises:
        InputError: there is something else at this place.
    """
    if (path / MARKER).is_file() or not path.exists():
        return not path.exists()
    if path.is_dir() and not any(path.iterdir()):
        return True
    kind = "a directory with other things in it" if path.is_dir() else "a file"
    raise InputError(f"study {path}: there is {kind} at this place; name a new or empty directory")


@dataclass(frozen=True, slots=True)
class Change:
    """Files on their way into a study. Nothing of them is visible before all are complete."""

    folder: Path
    #: The study as it is now, None if there is none yet.
    study: Study | None
    #: The relative paths to put in place, in order. What is removed here stays as it was.
    staged: list[str] = field(default_factory=list)

    def path(self, relative: str) -> Path:
        """Where to write the file that is to be at ``relative`` in the study.

        Files take their places in the order in which they were asked for.
        """
        self.staged.append(relative)
        path = self.folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


@contextlib.contextmanager
def changed_study(path: Path) -> Iterator[Change]:
    """A change of the study at ``path`` that happens whole or not at all.

    A new study appears by one rename. An existing one is locked against a second change, and its
    files are put in place when the block has succeeded; if that fails half-way, what was there is
    put back. After an error, Ctrl-C included, the study is as it was: if there was none, there is
    none.

    Raises:
        InputError: there is something else at this place.
        EncoreError: another process is changing this study.
    """
    if is_free(path):
        ancestor = next(parent for parent in path.absolute().parents if parent.is_dir())
        with _staging_folder(ancestor, name=path.absolute().name) as folder:
            yield Change(folder, study=None)
            _put_new_study(folder, path)
    else:
        study = open_study(path)
        with _locked(path), _staging_folder(path, name="change") as folder:
            change = Change(folder, study=study)
            yield change
            _put_in_place(change, study)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, which the operating system releases when its holder is killed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EncoreError(
                f"study {folder}: another process is changing it; wait for it and run this again"
            ) from error
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _staging_folder(parent: Path, *, name: str) -> Iterator[Path]:
    # What killed processes left is old enough, and locked by nobody.
    for leftover in parent.glob(f".{glob.escape(name)}.tmp-*"):
        with contextlib.suppress(OSError, EncoreError):
            if time.time() - leftover.stat().st_mtime > _LEFTOVER_SECONDS:
                with _locked(leftover):
                    shutil.rmtree(leftover)
    folder = parent / f".{name}.tmp-{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir()
    with _locked(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _put_new_study(folder: Path, path: Path) -> None:
    (folder / MARKER).write_text(json.dumps(_MARKER_CONTENT) + "\n", encoding="utf-8")
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


def _put_in_place(change: Change, study: Study) -> None:
    fsync_tree(change.folder)
    replaced: list[tuple[Path, Path | None]] = []
    try:
        for position, relative in enumerate(change.staged):
            target = study.path / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            kept = change.folder / f"replaced-{position}" if target.exists() else None
            replaced.append((target, kept))
            if kept is not None:
                os.link(target, kept)
            (change.folder / relative).replace(target)
    except BaseException:
        for target, kept in reversed(replaced):
            if kept is None:
                target.unlink(missing_ok=True)
            elif kept.exists():
                kept.replace(target)
        raise
    for folder in {(study.path / relative).parent for relative in change.staged}:
        fsync_path(folder)
