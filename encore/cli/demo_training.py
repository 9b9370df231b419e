"""The demo's trainings: one after the other, each shown here and told to whoever tracks them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from encore.cli.output import out, progress_bar, say
from encore.cli.stopping import stopped_by_sigterm

if TYPE_CHECKING:
    from encore.benchmarks.run import BenchmarkRun
    from encore.model.config import BackboneConfig
    from encore.training.config import TrainingConfig
    from encore.training.records import (
        CheckpointRecord,
        EvaluationRecord,
        Reporter,
        StepRecord,
        TrainingPlan,
        TrainingResult,
    )


class Tracker(Protocol):
    """Who else hears of a demo: of each training as it goes, of the table when it is there."""

    def training(self, study: Path, *, has_ratings: bool) -> AbstractContextManager[Reporter]:
        """Hears of a training for as long as it lasts; ``has_ratings``: it learns from them."""

    def table(self, run: BenchmarkRun, *, study: Path, models: Sequence[Path]) -> None:
        """Hears of the table; ``models`` are folders of the models behind its rows."""


def train_shown(
    study: Path, *, backbone: BackboneConfig, config: TrainingConfig, tracker: Tracker | None
) -> TrainingResult:
    """Train, or find what is trained, and say how it does on the pairs held out."""
    from encore.cli.train import heads_table
    from encore.cli.training_progress import ShownTraining
    from encore.training.driver import train_study
    from encore.training.records import SilentReporter

    tracking: AbstractContextManager[Reporter] = nullcontext(SilentReporter())
    has_ratings = config.objective == "multi-head"
    if tracker is not None:
        tracking = tracker.training(study, has_ratings=has_ratings)
    with progress_bar() as bar, stopped_by_sigterm(), tracking as reporter:
        result = train_study(
            study, backbone=backbone, config=config, reporter=_Told(ShownTraining(bar), reporter)
        )
    found = result.final_evaluation
    assert found is not None, "the demo holds pairs out"
    if has_ratings:
        out.print(heads_table(found))
    else:
        assert found.accuracy_half is not None, "preferences on the pairs held out"
        say(
            f"sides with the labels on the {found.num_pairs} held-out pairs: "
            f"{found.accuracy_half:.1%}"
        )
    done = f"trained in {result.seconds:.0f} s" if result.is_new else "trained before"
    say(f"{done}: {result.num_steps} steps; model {result.model_dir}")
    return result


class _Told:
    """Two reporters hear of a training, the second one also of what the first one showed."""

    def __init__(self, first: Reporter, second: Reporter) -> None:
        self._reporters = (first, second)

    def started(self, plan: TrainingPlan) -> None:
        for reporter in self._reporters:
            reporter.started(plan)

    def stepped(self, record: StepRecord) -> None:
        for reporter in self._reporters:
            reporter.stepped(record)

    def evaluated(self, record: EvaluationRecord) -> None:
        for reporter in self._reporters:
            reporter.evaluated(record)

    def saved(self, record: CheckpointRecord) -> None:
        for reporter in self._reporters:
            reporter.saved(record)

    def finished(self, result: TrainingResult) -> None:
        for reporter in self._reporters:
            reporter.finished(result)
