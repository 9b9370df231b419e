"""Keep what a run reports in the run's own folder, then tell whoever else wants to know."""

from __future__ import annotations

import dataclasses
from types import TracebackType
from typing import Self

from encore.training.log import StepLog, cut_log
from encore.training.records import (
    CheckpointRecord,
    EvaluationRecord,
    Reporter,
    StepRecord,
    TrainingPlan,
    TrainingResult,
)
from encore.training.run import TrainingRun


class RecordingReporter:
    """A reporter that writes `log.jsonl` and `evaluations.jsonl` before it passes the word on.

    Opening it cuts both files back to the step that the run goes on from, so that a step done
    again is not in them twice.

    Args:
        run: Whose folder.
        reporter: Who else hears of everything.
        start_step: Steps that count as done.
    """

    def __init__(self, run: TrainingRun, reporter: Reporter, *, start_step: int) -> None:
        cut_log(run.log_path, step=start_step, has_every_step=True)
        cut_log(run.evaluations_path, step=start_step, has_every_step=False)
        self._reporter = reporter
        self._steps = StepLog(run.log_path)
        self._evaluations = StepLog(run.evaluations_path)

    def started(self, plan: TrainingPlan) -> None:
        """Passed on."""
        self._reporter.started(plan)

    def stepped(self, record: StepRecord) -> None:
        """One line of `log.jsonl`."""
        self._steps.append(dataclasses.asdict(record))
        self._reporter.stepped(record)

    def evaluated(self, record: EvaluationRecord) -> None:
        """One line of `evaluations.jsonl`."""
        self._evaluations.append(dataclasses.asdict(record))
        self._reporter.evaluated(record)

    def saved(self, record: CheckpointRecord) -> None:
        """Passed on."""
        self._reporter.saved(record)

    def finished(self, result: TrainingResult) -> None:
        """Passed on."""
        self._reporter.finished(result)

    def sync(self) -> None:
        """Wait until both files are on the disk."""
        self._steps.sync()
        self._evaluations.sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._steps.close()
        self._evaluations.close()
