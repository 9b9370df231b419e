"""Train under Prefect, shown in MLflow as it goes."""

from __future__ import annotations

from encore.data.study import open_study
from encore.training.config import TrainConfig
from encore.training.run_folder import TrainingResult
from tasks.flow_reporter import FlowReporter
from tasks.stage import Attempts, prefect_tags, run_stage
from tasks.track import Tracked, Tracker, TrackingConfig


def train_tracked(
    config: TrainConfig, *, tracking: TrackingConfig, attempts: Attempts, name: str = "train"
) -> tuple[TrainingResult, Tracked | None]:
    """Train, go on from the newest checkpoint, or report what is there.

    Returns:
        The model, and where it is shown; None where MLflow was away.

    Raises:
        EncoreError: As `encore.training.train.train`.
    """
    also = () if config.out is None else (config.out,)
    tracker = Tracker(config.study, tracking, also=also, tags=prefect_tags())

    def work() -> TrainingResult:
        from encore.training.train import train

        try:
            reporter = FlowReporter("training", tracker=tracker)
            return train(open_study(config.study), config, reporter=reporter)
        except Exception:
            tracker(now=True, stopped="FAILED")
            raise
        except BaseException:  # Ctrl-C, SIGTERM, a cancelled flow run
            tracker(now=True, stopped="KILLED")
            raise

    result = run_stage(name, work, attempts=attempts, tags=frozenset({"train"}))
    return result, tracker(now=True)
