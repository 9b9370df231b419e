"""Task: train a reward model on a study's ratings, logged to MLflow.

What is done is read from the run's checkpoints, so the task is neither cached nor persisted:
another attempt, in this process or any other, goes on from the newest whole one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from encore.data.study import open_study
from encore.model.config import BackboneConfig
from encore.settings import quiet_environment
from encore.training.config import TrainingConfig
from encore.training.records import TrainingResult
from tasks.attempts import is_worth_another_attempt, release_memory
from tasks.run_history import rating_params
from tasks.track import TrackedRun
from tasks.track_training import DEFAULT_EXPERIMENT, tracked_training
from tasks.train_progress import FlowReporter

DEFAULT_RETRIES = 2
RETRY_DELAYS_SECONDS = (10.0, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingsChoice:
    """Which ratings are learned from; None: the study's only ones."""

    path: Path | None = None
    run: str | None = None
    judge: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """What a training left, and where it was logged."""

    result: TrainingResult
    tracked: TrackedRun

    @property
    def summary(self) -> str:
        """One line: what was done, and what MLflow lacks."""
        done = "trained" if self.result.is_new else "was trained before"
        late = self.tracked.num_waiting
        missing = f"; {late} entries are not in MLflow yet, the same command logs them"
        return f"{done}: {self.result.num_steps} steps{missing if late else ''}"


@task(
    name="train",
    tags={"train"},  # a concurrency limit on this tag bounds the trainings at work everywhere
    retries=DEFAULT_RETRIES,
    retry_delay_seconds=list(RETRY_DELAYS_SECONDS),
    retry_condition_fn=is_worth_another_attempt,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def train_model(
    study: Path,
    *,
    backbone: BackboneConfig,
    training: TrainingConfig,
    ratings: RatingsChoice,
    limit: int | None,
    out: Path | None,
    tracking_uri: str,
    experiment: str = DEFAULT_EXPERIMENT,
) -> TrainedModel:
    """Train, go on from the newest checkpoint, or report what is there.

    Raises:
        EncoreError: As `encore.training.driver.train_study`; MLflow does not answer at the start.
    """
    quiet_environment()
    from encore.training.driver import train_study

    open_study(study)  # before a store is made in a directory that is none
    about = {}
    if training.objective == "multi-head" and ratings.path is None:
        about = rating_params(study, run=ratings.run, judge=ratings.judge)
    try:
        with tracked_training(tracking_uri, experiment=experiment, about=about) as mlflow:
            result = train_study(
                study,
                backbone=backbone,
                config=training,
                ratings=ratings.path,
                run=ratings.run,
                judge=ratings.judge,
                limit=limit,
                out=out,
                reporter=FlowReporter(get_run_logger(), mlflow),
            )
        return TrainedModel(result=result, tracked=mlflow.tracked)
    except Exception as error:
        release_memory(error)
        raise
