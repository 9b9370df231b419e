"""How a stage tells what it does: one class for the terminal, Prefect and files."""

from __future__ import annotations

from pathlib import Path


class Reporter:
    """Hears of one stage's work; what a subclass does not override says nothing.

    Calls may come from worker threads.
    """

    def started(self, title: str, *, total: int | None = None, done: int = 0) -> None:
        """A stage or a part of it begins; ``total`` units of work, ``done`` of them before."""

    def advanced(self, count: int = 1, *, note: str = "") -> None:
        """So many more units are done; ``note`` is for people, e.g. a speed."""

    def saved(self, path: Path, *, kind: str) -> None:
        """A file or folder is complete, e.g. a shard or a checkpoint."""

    def message(self, text: str) -> None:
        """Show a line of text immediately, between progress updates."""

    def finished(self, summary: str = "") -> None:
        """The stage has ended."""


SILENT = Reporter()
