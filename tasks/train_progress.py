"""What a flow run shows of a training: progress, log lines, the evaluation, the MLflow run."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from uuid import UUID

import httpx
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from encore.training.records import (
    CheckpointRecord,
    EvaluationRecord,
    Reporter,
    StepRecord,
    TrainingPlan,
    TrainingResult,
)
from tasks.artifacts import NOTHING
from tasks.track import TrackedRun

_DIGITS = 4
#: Each update is a call that the training waits for.
_UPDATE_SECONDS = 10.0


class FlowReporter:
    """Tells the flow run's log and a progress artifact, and passes everything on.

    The Prefect server may be away for a while: progress is then not shown, and training goes on.
    """

    def __init__(
        self,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        reporter: Reporter,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._reporter = reporter
        self._clock = clock
        self._next_update = clock()
        self._num_steps = 0
        self._artifact: UUID | None = None

    def started(self, plan: TrainingPlan) -> None:
        """Say what is to be done, and show how much of it is."""
        self._reporter.started(plan)
        self._num_steps = plan.num_steps
        self._log.info(
            "training %d heads on %d pairs, %d held out: %d steps, %d of them done, on %s; in %s",
            len(plan.head_ids),
            plan.num_pairs,
            plan.num_evaluation_pairs,
            plan.num_steps,
            plan.start_step,
            plan.device,
            plan.out,
        )
        with _prefect_may_be_away():
            artifact = create_progress_artifact(
                progress=self._percent(plan.start_step),
                key="training-progress",
                description=f"Share of {plan.num_steps} optimizer steps that are done.",
            )
            assert isinstance(artifact, UUID)  # called from a synchronous task
            self._artifact = artifact

    def stepped(self, record: StepRecord) -> None:
        """Show progress now and then."""
        self._reporter.stepped(record)
        if self._clock() >= self._next_update or record.step == self._num_steps:
            self._next_update = self._clock() + _UPDATE_SECONDS
            self._show(self._percent(record.step))

    def evaluated(self, record: EvaluationRecord) -> None:
        """One line."""
        self._reporter.evaluated(record)
        self._log.info(
            "step %d: loss on held-out pairs %s, mean accuracy of the heads %s",
            record.step,
            _figure(record.loss),
            _figure(_mean(record.accuracy_half_by_head.values())),
        )

    def saved(self, record: CheckpointRecord) -> None:
        """One line."""
        self._reporter.saved(record)
        self._log.info("step %d: checkpoint %s", record.step, record.path)

    def finished(self, result: TrainingResult) -> None:
        """Where the model is, and what its reader should know."""
        self._reporter.finished(result)
        self._show(100.0)
        for note in result.notes:
            self._log.info("%s", note)
        self._log.info("model: %s", result.model_dir)

    def _percent(self, step: int) -> float:
        return 100 * step / self._num_steps if self._num_steps else 0.0

    def _show(self, percent: float) -> None:
        if self._artifact is not None:
            with _prefect_may_be_away():
                update_progress_artifact(self._artifact, progress=percent)


def publish_evaluation(result: TrainingResult) -> None:
    """A table of the heads on the held-out pairs; it says so when none were held out."""
    evaluation = result.final_evaluation
    rows = [] if evaluation is None else evaluation_rows(evaluation)
    create_table_artifact(
        rows or [{"head": NOTHING, "R²": NOTHING, "accuracy": NOTHING}],
        key="training-evaluation",
        description=_evaluation_words(result),
    )


def publish_mlflow_run(tracked: TrackedRun) -> None:
    """A link to the MLflow run; where the store is no server, how to open its pages."""
    late = f" {tracked.num_waiting} entries could not be logged yet." if tracked.num_waiting else ""
    if tracked.page is not None:
        create_link_artifact(
            tracked.page,
            link_text=f"MLflow run {tracked.run_id}",
            key="mlflow-run",
            description=f"Metrics, checkpoints and parameters of this training.{late}",
        )
        return
    create_markdown_artifact(
        f"Metrics, checkpoints and parameters of this training are in `{tracked.uri}`.{late} "
        f"To look at them:\n\n    {tracked.command}\n\nand open <{tracked.local_page}>.",
        key="mlflow-run",
        description=f"MLflow run {tracked.run_id}",
    )


def evaluation_rows(evaluation: EvaluationRecord) -> list[dict[str, float | str]]:
    """One row per head, and one for the model where it ranks pairs itself."""
    heads = dict.fromkeys([*evaluation.r2_by_head, *evaluation.accuracy_half_by_head])
    rows: list[dict[str, float | str]] = [
        {
            "head": head,
            "R²": _figure(evaluation.r2_by_head.get(head)),
            "accuracy": _figure(evaluation.accuracy_half_by_head.get(head)),
        }
        for head in heads
    ]
    if evaluation.accuracy_half is not None and not rows:
        rows.append(
            {"head": "reward", "R²": NOTHING, "accuracy": _figure(evaluation.accuracy_half)}
        )
    return rows


def _evaluation_words(result: TrainingResult) -> str:
    if result.final_evaluation is None:
        return "No pairs were held out."
    words = (
        f"After {result.num_steps} steps, on {result.final_evaluation.num_pairs} pairs that the "
        "model was not trained on. R²: how much of a rule's ratings its head explains. Accuracy: "
        "how often the head ranks the chosen response first; a tie counts one half."
    )
    return "\n\n".join([words, *result.notes])


@contextlib.contextmanager
def _prefect_may_be_away() -> Iterator[None]:
    with contextlib.suppress(httpx.HTTPError):
        yield


def _mean(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def _figure(value: float | None) -> float | str:
    return NOTHING if value is None else round(value, _DIGITS)
