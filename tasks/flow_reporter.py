"""Report the progress of a stage: in the flow run's log, as a progress artifact, in MLflow."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Literal

import httpx
from prefect.artifacts import ProgressArtifact
from prefect.runtime import flow_run

from encore.core.reporting import Reporter
from tasks.artifacts import LiveArtifact, artifact_key
from tasks.server_calls import run_logger
from tasks.tracking.connection import TrackingUnavailableError, check_server
from tasks.tracking.log_runs import Projection
from tasks.tracking.store_uri import choose_tracking_uri
from tasks.tracking.study_runs import StudyRun
from tasks.tracking.sync import sync
from tasks.tracking.tracking_options import TrackingConfig

logger = logging.getLogger(__name__)

#: Each update of a progress artifact is a call that the stage waits for.
_UPDATE_SECONDS = 10.0
#: Pause between two calls of `sync`: while MLflow answers, and while it is away.
_SYNC_SECONDS, _OUTAGE_SECONDS = 30.0, 600.0


class Tracker:
    """Callable that logs a study in MLflow while a stage runs; an outage costs a warning.

    A call does something at most every half minute, and every ten minutes while MLflow is away.
    """

    def __init__(self, study: Path, config: TrackingConfig, *, out: Path | None = None) -> None:
        """Take the study, the MLflow store, and a folder that may be outside of the study.

        Raises:
            NotMLflowError: The address is another service's, which no waiting mends.
        """
        with contextlib.suppress(OSError, httpx.HTTPError):  # an outage may pass
            check_server(choose_tracking_uri(study, given_uri=config.tracking_uri))
        self._sync = partial(
            sync,
            study,
            tracking_uri=config.tracking_uri,
            experiment=config.experiment,
            extra_folders=() if out is None else (out,),
            new_run_tags=_flow_run_tags(),
        )
        self._next_sync = 0.0

    def __call__(
        self,
        *,
        now: bool = False,
        weighings: Sequence[StudyRun] = (),
        end_status: Literal["FAILED", "KILLED"] | None = None,
    ) -> Projection | None:
        """Log what is new, ``now`` or if it is time. Return None if nothing was logged.

        Args:
            now: Log at once, however short the time since the last call.
            weighings: Runs that show weights of the rules (see `sync`).
            end_status: MLflow's status for trainings that have ended unfinished (see `sync`).
        """
        if not now and time.monotonic() < self._next_sync:
            return None
        projection = None
        try:
            projection = self._sync(weighings=weighings, end_status=end_status)
        except TrackingUnavailableError as error:
            logger.warning("%s; the stage goes on, and the next call logs what is missing", error)
        self._next_sync = time.monotonic() + (_SYNC_SECONDS if projection else _OUTAGE_SECONDS)
        return projection


def _flow_run_tags() -> dict[str, str]:
    """Return tags of the flow run that logs: its id, and its page if it has one."""
    if flow_run.id is None:
        return {}
    tags = {"encore.prefect_flow_run": str(flow_run.id)}
    page = str(flow_run.ui_url)
    if page.startswith("http"):
        tags["encore.prefect_page"] = page
    return tags


class FlowReporter(Reporter):
    """Reporter that shows one stage's progress on Prefect's pages; its figures are in MLflow.

    While the Prefect server is away, no progress is shown and the stage goes on.
    """

    def __init__(self, stage: str, study: Path, *, tracker: Tracker | None = None) -> None:
        """Take the stage's name, and what logs it in MLflow."""
        self._stage, self._study, self._title = stage, study, ""
        self._tracker = tracker
        self._lock = Lock()
        self._artifact: LiveArtifact | None = None
        self._num_done = self._total = 0
        self._next_update = 0.0

    def started(self, title: str, *, total: int | None = None, done: int = 0) -> None:
        """Log one line, and begin a progress artifact if ``total`` is known."""
        self.message(title)
        if total:
            self._title, self._num_done, self._total = title, done, total
            self._artifact = LiveArtifact(artifact_key(f"{self._stage}-progress", self._study))
            self.show_progress()

    def advanced(self, count: int = 1, *, note: str = "") -> None:
        """Count finished units, and show the progress every ten seconds."""
        with self._lock:
            self._num_done += count
            is_due = time.monotonic() >= self._next_update or self._num_done >= self._total
            if is_due:
                self._next_update = time.monotonic() + _UPDATE_SECONDS
        if is_due:
            if note:
                self.message(f"{self._num_done} of {self._total}, {note}")
            self.show_progress()
            if self._tracker is not None:
                self._tracker()

    def saved(self, path: Path, *, kind: str) -> None:
        """Log one line, and show a checkpoint in MLflow at once."""
        self.message(f"{kind}: {path}")
        if self._tracker is not None:
            self._tracker(now=True)

    def message(self, text: str) -> None:
        """Log a line of text."""
        run_logger().info("%s", text)

    def finished(self, summary: str = "") -> None:
        """Log one line, and show the progress as complete."""
        if summary:
            self.message(summary)
        self._num_done = self._total
        self.show_progress()

    def show_progress(self) -> None:
        """Show the share of finished units now."""
        if self._artifact is not None:
            percent = 100 * self._num_done / self._total
            self._artifact.show(ProgressArtifact(progress=percent, description=self._title))
