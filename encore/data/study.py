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
from pathlib import Path
from typing import IO

from encore.errors import EncoreError, InputError
from encore.files import atomic_write_bytes, fsync_path

MARKER = "study.json"
FORMAT_VERSION = 1
_MARKER_BYTES = json.dumps({"encore_study": FORMAT_VERSION}).encode() + b"\n"
#: A younger staging folder may belong to a process that is just about to lock it.
_LEFTOVER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Study:
    """Where a study keeps what. Get one from `open_study` or `create_study`."""

    path: Path

    @property
    def pairs_dir(self) -> Path:
        """Preference pairs, their manifests and what was set aside."""
        return self.path / "pairs"

    @property
    def ratings_dir(self) -> Path:
        """One folder per run key."""
        return self.path / "ratings"


def open_study(path: Path) -> Study:
    """The study in a directory.

    Raises:
        InputError: no such directory, not a study, or of a newer format.
    """
    marker = path / MARKER
    if path.is_file():
        raise InputError(f"study {path}: this is a file; name the study's directory")
    if not path.is_dir():
        raise InputError(
            f"study {path}: no such directory; make it with `encore ingest SOURCE --out {path}`"
        )
    if not marker.is_file():
        raise InputError(
            f"study {path}: this directory has no {MARKER}, so it is not a study; "
            "name the directory that was given to `encore ingest --out`"
        )
    _check_marker(marker)
    return Study(path)


def as_study(study: Study | Path) -> Study:
    """An opened study as it is, a directory opened."""
    return study if isinstance(study, Study) else open_study(study)


def create_study(path: Path) -> Study:
    """The study in a directory, which is made if it is not there or empty.

    Raises:
        InputError: there is something else at this place.
    """
    if is_free(path):
        path.mkdir(parents=True, exist_ok=True)
        atomic_write_bytes(path / MARKER, _MARKER_BYTES)
    return open_study(path)


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


def _check_marker(marker: Path) -> None:
    try:
        content = json.loads(marker.read_bytes())
    except ValueError as error:
        raise InputError(f"{marker}: damaged, expected {_MARKER_BYTES.decode()!r}") from error
    version = content.get("encore_study") if isinstance(content, dict) else None
    if version != FORMAT_VERSION:
        raise InputError(
            f"{marker}: study format {version!r}, this version of encore reads "
            f"{FORMAT_VERSION}; use the version that wrote it"
        )


@dataclass(slots=True)
class Change:
    """Files on their way into a study. Nothing of them is visible before all are complete."""

    folder: Path
    #: The study as it is now, None if there is none yet.
    study: Study | None
    _staged: list[Path] = field(default_factory=list)

    def path(self, relative: str) -> Path:
        """Where to write the file that is to be at ``relative`` in the study.

        Files take their places in the order in which they were asked for.
        """
        self._staged.append(Path(relative))
        staged = self.folder / relative
        staged.parent.mkdir(parents=True, exist_ok=True)
        return staged

    def discard(self, relative: str) -> None:
        """Leave what the study has at ``relative`` as it is."""
        self._staged.remove(Path(relative))
        (self.folder / relative).unlink()

    @property
    def staged(self) -> tuple[Path, ...]:
        """The relative paths to put in place, in order."""
        return tuple(self._staged)


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
            _publish(folder, path)
    else:
        study = open_study(path)
        with _locked(study), _staging_folder(path, name="change") as folder:
            change = Change(folder, study=study)
            yield change
            _put_in_place(change, study)


@contextlib.contextmanager
def _staging_folder(parent: Path, *, name: str) -> Iterator[Path]:
    _remove_leftovers(parent, name)
    folder = parent / f".{name}.tmp-{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir()
    with _locked_folder(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers(parent: Path, name: str) -> None:
    """Delete the staging folders of killed processes: old enough, and locked by nobody."""
    for folder in parent.glob(f".{glob.escape(name)}.tmp-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _LEFTOVER_SECONDS:
                with _locked_folder(folder):
                    shutil.rmtree(folder)


@contextlib.contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _publish(folder: Path, path: Path) -> None:
    (folder / MARKER).write_bytes(_MARKER_BYTES)
    _fsync_tree(folder)
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


@contextlib.contextmanager
def _locked(study: Study) -> Iterator[None]:
    with (study.path / MARKER).open("rb") as stream:
        _lock(stream, study)
        yield


def _lock(stream: IO[bytes], study: Study) -> None:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise EncoreError(
            f"study {study.path}: another process is changing it; wait for it and run this again"
        ) from error


def _put_in_place(change: Change, study: Study) -> None:
    _fsync_tree(change.folder)
    replaced: list[tuple[Path, Path | None]] = []
    try:
        for position, relative in enumerate(change.staged):
            target = study.path / relative
            target.parent.mkdir(exist_ok=True)
            kept = change.folder / f"replaced-{position}" if target.exists() else None
            replaced.append((target, kept))
            if kept is not None:
                os.link(target, kept)
            (change.folder / relative).replace(target)
    except BaseException:
        for target, kept in reversed(replaced):
            _restore(target, kept)
        raise
    for folder in {(study.path / relative).parent for relative in change.staged}:
        fsync_path(folder)


def _restore(target: Path, kept: Path | None) -> None:
    if kept is None:
        target.unlink(missing_ok=True)
    elif kept.exists():
        kept.replace(target)


def _fsync_tree(folder: Path) -> None:
    for entry in (*folder.rglob("*"), folder):
        fsync_path(entry)
