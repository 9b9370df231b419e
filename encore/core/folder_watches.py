"""Receivers of what happens to a study's files: a study in a bucket copies its new files there."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from encore.core.errors import EncoreError

logger = logging.getLogger(__name__)


class FolderWatch(Protocol):
    """Receiver of what happens to files: a study in a bucket copies its new files there."""

    def changed(self, paths: Sequence[Path]) -> None:
        """Take files and folders that were written whole, or removed, in this order."""

    def claim(self, folder: Path, part: str) -> None:
        """Refuse work on a part of a run's folder if another machine's process works on it."""

    def close(self) -> None:
        """Finish what was begun. Nothing is told after that."""


#: The watches of this process. Each ignores paths that are not its own.
folder_watches: list[FolderWatch] = []


def tell_changed(*paths: Path) -> None:
    """Tell the watches of files and folders that were written whole, or removed."""
    for watch in folder_watches:
        watch.changed(paths)


def claim_for_work(folder: Path, *, part: str = "") -> None:
    """Ask the watches for leave to work on a run's folder.

    Args:
        folder: Folder of the run.
        part: Part of the run that has a claim of its own, e.g. ``0-4`` for a slice.

    Raises:
        EncoreError: A process on another machine works on it.
    """
    for watch in folder_watches:
        watch.claim(folder, part)


@contextmanager
def sending_studies() -> Iterator[None]:
    """After the block, wait until every changed file is in its bucket, and give up the claims.

    It does so after an error and Ctrl-C, too. Then a failure is a warning.

    >>> import encore
    >>> with encore.sending_studies():
    ...     study = encore.open_study("study")

    Raises:
        EncoreError: Files could not be copied. They are kept, and sent by the next command.
    """
    try:
        yield
    except BaseException:
        try:
            _close_watches()
        except EncoreError as error:
            logger.warning("%s", error)
        raise
    _close_watches()


def _close_watches() -> None:
    """Close every watch, also after the error of one."""
    with ExitStack() as stack:
        while folder_watches:
            stack.callback(folder_watches.pop().close)
