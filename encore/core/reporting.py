"""Progress of a stage: the base class of the reporters for terminals, Prefect and tests."""

from __future__ import annotations

from pathlib import Path


class Reporter:
    """Receive progress events of one stage. The base class ignores them.

    Calls may come from worker threads.
    """

    def started(self, title: str, *, total: int | None = None, done: int = 0) -> None:
        """Begin a progress bar of ``total`` units, of which ``done`` were finished earlier."""

    def advanced(self, count: int = 1, *, note: str = "") -> None:
        """Advance the bar by ``count`` units. ``note`` is for people, e.g. a speed."""

    def saved(self, path: Path, *, kind: str) -> None:
        """Report a complete file or folder, e.g. a shard or a checkpoint."""

    def message(self, text: str) -> None:
        """Show a line of text immediately, between progress updates."""

    def finished(self, summary: str = "") -> None:
        """End the progress bar and show a summary."""


SILENT = Reporter()
