"""What a stage tells while it runs: in the flow run's log, as a progress artifact, in MLflow."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from threading import Lock
from typing import Any

import httpx
from prefect.artifacts import ProgressArtifact
from prefect.runtime import flow_run

from encore.core.reporting import Reporter
from tasks.artifacts import LiveArtifact
from tasks.server import run_logger
from tasks.tracking import sync as track

logger = logging.getLogger(__name__)

#: Each update is a call that the stage waits for.
_UPDATE_SECONDS = 10.0


class Tracker:
    """Shows a study in MLflow while a stage runs; an outage costs a warning.

    A call does something at most every half minute, and every ten minutes while MLflow is away.
    """

    def __init__(
        self, study: Path, config: track.TrackingConfig, *, out: Path | None = None
    ) -> None:
        """Take what `sync` takes; ``out`` is a folder that may be outside of the study.

        Raises:
            NotMLflowError: The address is another service's, which no waiting mends.
        """
        with contextlib.suppress(OSError, httpx.HTTPError):  # an outage may pass
            track.check_server(track.choose_tracking_uri(study, given=config.tracking_uri))
        also = () if out is None else (out,)
        self._arguments = {"study": study, **dict(config), "also": also, "tags": _flow_run_tags()}
        self._not_before = 0.0

    def __call__(self, *, now: bool = False, **arguments: Any) -> track.Projection | None:
        """Show what is there, ``now`` or if it is time; None where that was not done."""
        if not now and time.monotonic() < self._not_before:
            return None
        tracked = None
        try:
            tracked = track.sync(**self._arguments, **arguments)
        except track.TrackingUnavailableError as error:
            logger.warning("%s; the stage goes on, and the next call logs what is missing", error)
        self._not_before = time.monotonic() + (30.0 if tracked else 600.0)
        return tracked


def _flow_run_tags() -> dict[str, str]:
    """The flow run that logs, and its page where there is one."""
    if flow_run.id is None:
        return {}
    page = str(flow_run.ui_url)
    shown = {"encore.prefect_page": page} if page.startswith("http") else {}
    return {"encore.prefect_flow_run": str(flow_run.id), **shown}


class FlowReporter(Reporter):
    """Tells what one stage does on Prefect's pages; its figures are MLflow's to show.

    The Prefect server may be away for a while: progress is then not shown, and the stage goes on.
    """

    def __init__(self, stage: str, study: Path, *, tracker: Tracker | None = None) -> None:
        """Take the stage's name (empty: no progress artifact), and what shows it in MLflow."""
        self._stage, self._study, self._title = stage, study, ""
        self._tracker = tracker
        self._lock = Lock()
        self._artifact: LiveArtifact | None = None
        self._num_done = self._total = 0
        self._not_before = 0.0

    def started(self, title: str, *, total: int | None = None, done: int = 0) -> None:
        """One line; a progress artifact where it is known how much there is to do."""
        self.message(title)
        if total:
            self._title, self._num_done, self._total = title, done, total
            if self._stage:
                self._artifact = LiveArtifact(f"{self._stage}-progress", self._study)
            self._show()

    def advanced(self, count: int = 1, *, note: str = "") -> None:
        """Show progress now and then."""
        with self._lock:
            self._num_done += count
            is_due = time.monotonic() >= self._not_before or self._num_done >= self._total
            if is_due:
                self._not_before = time.monotonic() + _UPDATE_SECONDS
        if is_due:
            if note:
                self.message(f"{self._num_done} of {self._total}, {note}")
            self._show()
            if self._tracker is not None:
                self._tracker()

    def saved(self, path: Path, *, kind: str) -> None:
        """One line; a checkpoint is shown in MLflow at once."""
        self.message(f"{kind}: {path}")
        if self._tracker is not None:
            self._tracker(now=True)

    def message(self, text: str) -> None:
        """Log a line of text."""
        run_logger().info("%s", text)

    def finished(self, summary: str = "") -> None:
        """One line, and all of the progress."""
        if summary:
            self.message(summary)
        self._num_done = self._total
        self._show()

    def _show(self) -> None:
        if self._artifact is not None:
            percent = 100 * self._num_done / self._total
            self._artifact.show(ProgressArtifact(progress=percent, description=self._title))
