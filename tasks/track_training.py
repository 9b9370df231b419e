"""Tell MLflow what a training run says of itself, whatever happens to either of them.

What the MLflow run has is read from the store, what happened is read from the training run's own
files; whoever trains on after a crash logs the difference. MLflow cannot take a metric back, so a
step that an earlier attempt logged stays as it was logged then, and no (metric, step) is there
twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from encore.training.records import (
    CheckpointRecord,
    EvaluationRecord,
    StepRecord,
    TrainingPlan,
    TrainingResult,
)
from tasks.outbox import Figures, Outbox
from tasks.run_history import RunFiles, read_run_files
from tasks.run_words import evaluation_values, run_params, run_tags, step_values
from tasks.track import MlflowStore, TrackedRun, connect, system_reader

logger = logging.getLogger(__name__)

DEFAULT_EXPERIMENT = "encore"
#: Steps whose metrics go in one call: 100 single calls took 2.9 s over HTTP, one batch 0.03 s.
DEFAULT_LOG_EVERY = 20
#: MLflow's own limit of one call is 1000.
_MOST_VALUES = 900
_SAMPLE_SECONDS = 10.0
_LAST_ATTEMPTS = 3
_LAST_WAIT_SECONDS = 2.0


@contextlib.contextmanager
def tracked_training(
    uri: str,
    *,
    experiment: str = DEFAULT_EXPERIMENT,
    log_every: int = DEFAULT_LOG_EVERY,
    about: Mapping[str, str] | None = None,
) -> Iterator[MlflowReporter]:
    """A reporter for one training run; its MLflow run is closed on any way out of the block.

    Args:
        uri: Of the tracking store, see `tasks.tracking_uri`.
        experiment: Made if it is not there.
        log_every: Steps whose metrics go in one call.
        about: Further parameters of the run by name, such as the digests of its ratings.

    Raises:
        TrackingUnavailableError: The store does not answer. Later it may be away for a while.
    """
    reporter = MlflowReporter(connect(uri, experiment=experiment), about or {}, log_every=log_every)
    try:
        yield reporter
    except Exception:
        reporter.stopped("FAILED")
        raise
    except BaseException:  # Ctrl-C, SIGTERM, a cancelled flow run
        reporter.stopped("KILLED")
        raise


class MlflowReporter:
    """Tells MLflow what a training run says of itself. Get one from `tracked_training`."""

    def __init__(
        self,
        store: MlflowStore,
        about: Mapping[str, str],
        *,
        log_every: int = DEFAULT_LOG_EVERY,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._about = about
        self._log_every = log_every
        self._clock = clock
        self._pause = pause
        self._read_system = system_reader()
        self._next_sample = clock()
        self._outbox = Outbox(
            send=store.send,
            most_values=_MOST_VALUES,
            errors=store.errors,
            say_away=self._say_away,
            say_back=self._say_back,
            clock=clock,
        )
        self._out: Path | None = None
        self._is_closed = False
        self._num_stepped = 0
        self._logged_steps: frozenset[int] = frozenset()
        self._evaluations: dict[int, Figures] = {}
        self._held: Figures | None = None

    def started(self, plan: TrainingPlan) -> None:
        """Find or make the MLflow run and log what an earlier attempt could not.

        Raises:
            TrackingUnavailableError: MLflow does not answer: nothing has been trained yet.
        """
        assert plan.out is not None, "the driver names the run's folder"
        self._open(plan.out, last_step=plan.start_step, is_over=False, plan=plan)

    def stepped(self, record: StepRecord) -> None:
        """Keep the metrics of a step; every `log_every` steps one call sends them."""
        self._release()
        if record.step not in self._logged_steps:
            values = step_values(dataclasses.asdict(record)) | self._system_values()
            self._outbox.put(self._figures(record.step, values))
        self._num_stepped += 1
        if self._num_stepped % self._log_every == 0:
            self._outbox.deliver()

    def evaluated(self, record: EvaluationRecord) -> None:
        """Keep the metrics of an evaluation until it is known whether a checkpoint has them."""
        self._release()
        if record.step not in self._evaluations:
            self._held = self._figures(record.step, evaluation_values(dataclasses.asdict(record)))
            self._evaluations[record.step] = self._held

    def saved(self, record: CheckpointRecord) -> None:
        """Log a checkpoint as a LoggedModel, with the metrics of its evaluation."""
        self._held, held = None, self._held
        if held is not None and held.step != record.step:
            self._outbox.put(held)
        self._put_model(record)
        self._outbox.deliver()

    def finished(self, result: TrainingResult) -> None:
        """Log the final model and the run's files, and close the MLflow run.

        A training that was finished before is logged from its files. MLflow being away is said, not
        raised: the model is there.
        """
        out = result.out
        if self._out is None:
            self._open(out, last_step=result.num_steps, is_over=True, plan=None)
        self._release()
        if result.model_dir is not None:
            evaluation = result.final_evaluation
            self._put_model(
                CheckpointRecord(
                    step=result.num_steps, path=result.model_dir, evaluation=evaluation
                )
            )
        self._end(out, "FINISHED")

    def stopped(self, status: str) -> None:
        """Log what there is of a run that ended early; ``status`` is MLflow's FAILED or KILLED."""
        if self._out is not None:
            self._release()
            self._end(self._out, status)

    @property
    def tracked(self) -> TrackedRun:
        """Where the run was logged."""
        return self._store.tracked(num_waiting=self._outbox.num_waiting)

    def _open(self, out: Path, *, last_step: int, is_over: bool, plan: TrainingPlan | None) -> None:
        files = read_run_files(out, last_step=last_step)
        with self._store.answering("starting the run"):
            self._is_closed = self._store.open_run(
                files.run_key,
                params=run_params(files.manifest, plan=plan, about=self._about),
                tags=run_tags(files.manifest, out=out, about=self._about),
                begins_anew=last_step == 0 and not is_over,
                is_over=is_over,
            )
            self._logged_steps = self._store.logged_steps()
            self._evaluations = self._store.logged_evaluations()
        self._out = out
        self._put_what_is_missing(files)

    def _put_what_is_missing(self, files: RunFiles) -> None:
        """What happened before this process and was not logged, oldest first."""
        for step, record in files.steps.items():
            if step not in self._logged_steps:
                self._outbox.put(self._figures(step, step_values(record)))
        for step, record in files.evaluations.items():
            if step not in self._evaluations:
                self._evaluations[step] = self._figures(step, evaluation_values(record))
                self._outbox.put(self._evaluations[step])
        for checkpoint in files.checkpoints:
            self._put_model(checkpoint)
        self._outbox.deliver()

    def _put_model(self, record: CheckpointRecord) -> None:
        """Metrics of a model are also the run's: exactly the same, so the store has them once."""
        if self._store.has_model(record):
            return
        figures = self._evaluations.get(record.step)
        if figures is None:
            evaluation = record.evaluation
            values = evaluation_values(dataclasses.asdict(evaluation)) if evaluation else {}
            figures = self._figures(record.step, values)
        self._outbox.put(dataclasses.replace(figures, checkpoint=record))

    def _system_values(self) -> Mapping[str, float]:
        if self._clock() < self._next_sample:
            return {}
        self._next_sample = self._clock() + _SAMPLE_SECONDS
        return self._read_system()

    def _release(self) -> None:
        if self._held is not None:
            self._outbox.put(self._held)
            self._held = None

    def _end(self, out: Path, status: str) -> None:
        if self._is_closed and not self._outbox.num_waiting:
            return
        for attempt in range(_LAST_ATTEMPTS if status == "FINISHED" else 1):
            if attempt:
                self._pause(_LAST_WAIT_SECONDS)
            if self._outbox.deliver(is_urgent=True) and self._closed(out, status):
                return
        logger.warning(
            "MLflow %s: %d entries of this run are not logged, nor that it is %s; they are in %s, "
            "and the same command logs what is missing",
            self._store.shown_uri,
            self._outbox.num_waiting,
            status.lower(),
            out,
        )

    def _closed(self, out: Path, status: str) -> bool:
        try:
            self._store.close_run(out, status)
        except self._store.errors as error:
            self._say_away(error)
            return False
        return True

    def _figures(self, step: int, values: Mapping[str, float]) -> Figures:
        return Figures(step=step, timestamp_ms=time.time_ns() // 1_000_000, values=values)

    def _say_away(self, error: Exception) -> None:
        logger.warning(
            "MLflow %s does not take what is logged (%s); training goes on, metrics are kept and "
            "logged when it answers again",
            self._store.shown_uri,
            self._store.in_one_line(error),
        )

    def _say_back(self, num_late: int) -> None:
        logger.warning(
            "MLflow %s answers again; %d entries were logged late", self._store.shown_uri, num_late
        )
