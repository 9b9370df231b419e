"""Tasks: score a benchmark's pairs and make the table; log it to MLflow; register a candidate.

What is done is read from head scores on disk and from runs in MLflow, so no task is cached or
persisted: another attempt, in this process or any other, does only what is missing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.runtime import flow_run
from prefect.tasks import Task

from encore.benchmarks.benchmark_config import BenchmarkConfig
from encore.benchmarks.render import notes_of, render
from encore.benchmarks.run import BenchmarkRun, run_benchmark
from encore.data.study import open_study
from encore.reporting import SilentReporter
from encore.settings import quiet_environment
from tasks.attempts import is_worth_another_attempt, release_memory
from tasks.evaluation_words import PAGE_TAG
from tasks.model_registry import Registered, candidate_row, register_candidate
from tasks.track import TrackingRefusedError, TrackingUnavailableError
from tasks.track_benchmark import TrackedTable, track_table
from tasks.track_nested import trainings_behind

DEFAULT_RETRIES = 2
RETRY_DELAYS_SECONDS = (10.0, 60.0)
_LOG_SECONDS = 30.0


def trainings_of(config: BenchmarkConfig) -> tuple[Path, ...]:
    """Folders of the finished training runs that a table's models are of."""
    own = () if config.model is None else (config.model,)
    return trainings_behind((*own, *config.named_models.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedStudy:
    """What an evaluation left, and where it was logged.

    Attributes:
        out: The folder of table and results.
        num_computed: Pairs scored now, over all models.
        marks: ``partial`` and ``synthetic``, where that holds.
        tracked: Where its rows were logged.
        registered: What became of the candidate; None without one.
    """

    out: Path
    num_computed: int
    marks: tuple[str, ...]
    tracked: TrackedTable
    registered: Registered | None

    @property
    def summary(self) -> str:
        """One line: rows, what was done for them, what became of the candidate."""
        num_rows, num_new = len(self.tracked.run_ids), self.tracked.num_new
        done = f"{self.num_computed} pairs scored" if self.num_computed else "scored before"
        marks = f" ({', '.join(self.marks)})" if self.marks else ""
        registered = f"; {self.registered.summary}" if self.registered else ""
        return f"{num_rows} rows{marks}, {done}, {num_new} logged; {self.out}{registered}"


@task(
    name="benchmark",
    tags={"score"},  # it puts models on a device, as scoring does: one limit bounds both
    retries=DEFAULT_RETRIES,
    retry_delay_seconds=list(RETRY_DELAYS_SECONDS),
    retry_condition_fn=is_worth_another_attempt,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def benchmark_study(
    study: Path, *, config: BenchmarkConfig, candidate: str | None = None
) -> BenchmarkRun:
    """Score what is not scored yet, and write the table: the files of `encore benchmark`.

    Raises:
        InputError: ``candidate`` is none of the rows.
        EncoreError: As `encore.benchmarks.run.run_benchmark`.
    """
    quiet_environment()
    try:
        reporter = _Logged(get_run_logger())
        run = run_benchmark(open_study(study), config, reporter=reporter)
    except Exception as error:
        release_memory(error)
        raise
    if candidate is not None:
        candidate_row(run, candidate)  # before anything is logged
    for note in notes_of(run.table):
        get_run_logger().info("%s", note)
    return run


def is_away(_task: Task[..., Any], _task_run: TaskRun, state: State[Any]) -> bool:
    """Prefect's retry condition: MLflow did not answer, and may do so later."""
    error: object = state.data
    is_final = isinstance(error, TrackingRefusedError)
    return isinstance(error, TrackingUnavailableError) and not is_final


@task(
    name="track-benchmark",
    retries=DEFAULT_RETRIES,
    retry_delay_seconds=list(RETRY_DELAYS_SECONDS),
    retry_condition_fn=is_away,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def track_benchmark(
    run: BenchmarkRun,
    *,
    study: Path,
    uri: str,
    experiment: str | None,
    trainings: Sequence[Path],
) -> TrackedTable:
    """Log every row, and every training behind one, that is not in MLflow yet.

    Raises:
        TrackingUnavailableError: MLflow does not answer; the table is on the disk.
    """
    return track_table(
        run,
        study=study,
        uri=uri,
        experiment=experiment,
        trainings=trainings,
        about=prefect_tags(),
    )


@task(
    name="register-candidate",
    retries=DEFAULT_RETRIES,
    retry_delay_seconds=list(RETRY_DELAYS_SECONDS),
    retry_condition_fn=is_away,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def register(
    run: BenchmarkRun,
    tracked: TrackedTable,
    *,
    row: str,
    uri: str,
    model: str,
    margin: float,
) -> Registered:
    """Make a row the candidate, and the champion if it may be.

    Raises:
        TrackingUnavailableError: MLflow does not answer.
    """
    found = register_candidate(run, tracked, row=row, uri=uri, model=model, margin=margin)
    get_run_logger().info("%s", found.summary)
    return found


def prefect_tags() -> dict[str, str]:
    """The flow run that this is part of, and its page where there is one."""
    run_id = flow_run.id
    if run_id is None:
        return {}
    page = str(flow_run.ui_url)
    tags = {"encore.prefect_flow_run": str(run_id)}
    return {**tags, PAGE_TAG: page} if page.startswith("http") else tags


def evaluated_study(
    run: BenchmarkRun, *, tracked: TrackedTable, registered: Registered | None
) -> EvaluatedStudy:
    """What a flow run keeps of an evaluation: paths and counts, no pairs."""
    marks = {"partial": run.table.pairs.is_partial, "synthetic": bool(run.table.synthetic)}
    return EvaluatedStudy(
        out=run.out,
        num_computed=run.num_computed,
        marks=tuple(mark for mark, holds in marks.items() if holds),
        tracked=tracked,
        registered=registered,
    )


def publish_table(run: BenchmarkRun) -> None:
    """The table with its notes: as soon as it is there, whether or not it can be logged."""
    create_markdown_artifact(
        render(run.table, form="markdown"),
        key="benchmark-table",
        description=f"{run.table.pairs.benchmark.title}. Every pair: {run.results_path}.",
    )


def publish_tracked(tracked: TrackedTable) -> None:
    """Where the table was logged."""
    words = f"Every row of the table is a run of experiment {tracked.experiment}."
    if tracked.run.page is not None:
        create_link_artifact(
            tracked.run.page,
            link_text=f"MLflow run {tracked.run.run_id}",
            key="mlflow-evaluation",
            description=words,
        )
    else:
        create_markdown_artifact(
            f"{words} They are in `{tracked.run.uri}`. To look at them:\n\n"
            f"    {tracked.run.command}\n\nand open <{tracked.run.local_page}>.",
            key="mlflow-evaluation",
            description=f"MLflow run {tracked.run.run_id}",
        )


def publish_candidate(registered: Registered) -> None:
    """What became of the candidate."""
    create_markdown_artifact(registered.summary, key="candidate")


class _Logged(SilentReporter):
    """Tells the flow run's log now and then how far scoring is."""

    def __init__(
        self,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._clock = log, clock
        self._title, self._num_done, self._total = "", 0, 0
        self._next_line = clock()

    def started(self, title: str, *, total: int | None = None, done: int = 0) -> None:
        """A model's pairs are scored from now on."""
        self._title, self._num_done, self._total = title, done, total or 0

    def advanced(self, count: int = 1, *, note: str = "") -> None:  # noqa: ARG002  # the protocol's
        """So many more pairs."""
        self._num_done += count
        if self._clock() >= self._next_line or self._num_done >= self._total:
            self._next_line = self._clock() + _LOG_SECONDS
            self._log.info("%s: %d of %d pairs scored", self._title, self._num_done, self._total)
