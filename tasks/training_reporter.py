"""A training's own words passed on to an `encore.reporting.Reporter`."""

from __future__ import annotations

from encore.training.records import (
    CheckpointRecord,
    EvaluationRecord,
    SilentReporter,
    StepRecord,
    TrainingPlan,
    TrainingResult,
)
from tasks.flow_reporter import FlowReporter


class TrainingReporter(SilentReporter):
    """Hears of one training run."""

    def __init__(self, reporter: FlowReporter) -> None:
        self._reporter = reporter

    def started(self, plan: TrainingPlan) -> None:
        """Say what is to be done."""
        title = (
            f"training {len(plan.head_ids)} heads on {plan.num_pairs} pairs, "
            f"{plan.num_evaluation_pairs} held out: {plan.num_steps} steps on {plan.device}"
        )
        self._reporter.started(title, total=plan.num_steps, done=plan.start_step)

    def stepped(self, record: StepRecord) -> None:
        """Show progress."""
        self._reporter.advanced(note=f"{record.tokens_per_second:.0f} tokens/s")

    def evaluated(self, record: EvaluationRecord) -> None:
        """One line."""
        values = {} if record.loss is None else {"eval/loss": record.loss}
        self._reporter.measured(values, step=record.step)

    def saved(self, record: CheckpointRecord) -> None:
        """One line."""
        self._reporter.saved(record.path, kind="checkpoint")

    def finished(self, result: TrainingResult) -> None:
        """Say where the model is."""
        self._reporter.finished("\n".join((*result.notes, f"model: {result.model_dir}")))
