"""Flow: train a multi-head reward model on a study's ratings, shown in MLflow.

As a command, with or without a Prefect server:
``python -m flows.train_reward_model STUDY --backbone BACKBONE``.
"""

from __future__ import annotations

from prefect.client.schemas.objects import State
from prefect.states import Completed

from encore.data.study import open_study
from encore.data.study_options import StudyArgument
from encore.training.run_folder import TrainingResult
from encore.training.training_options import TrainingRunConfig
from flows.command import run_command
from flows.study_flow import study_flow
from tasks.artifacts import publish_evaluation, publish_tracked
from tasks.flow_reporter import FlowReporter, Tracker
from tasks.stage_task import Attempts, retries_option, run_stage
from tasks.tracking.tracking_options import TrackingConfig


class TrainingAttempts(Attempts):
    """Number of attempts at a training."""

    retries: int = retries_option("training-retries")


@study_flow("train-reward-model", stage="train")
def train_reward_model(
    study: StudyArgument,
    config: TrainingRunConfig,
    tracking: TrackingConfig = TrackingConfig(),
    attempts: TrainingAttempts = TrainingAttempts(),
) -> State:
    """Train a reward model under Prefect and show it in MLflow: the same model as `encore train`.

    Without PREFECT_API_URL a temporary server is started for this run; with it, the run and its
    artifacts (progress, the evaluation, a link to the MLflow run) are kept on that server. Run the
    same command again after a crash or Ctrl-C: it goes on from the newest checkpoint, in the same
    MLflow run.

    Example: python -m flows.train_reward_model study --backbone ./my-llama --method probe
    """
    tracker = Tracker(study, tracking, out=config.out)

    def work() -> TrainingResult:
        from encore.training.train import train

        try:
            reporter = FlowReporter("training", study, tracker=tracker)
            return train(open_study(study), config, reporter=reporter)
        except BaseException as error:  # also Ctrl-C, SIGTERM, a cancelled flow run
            tracker(now=True, end_status="FAILED" if isinstance(error, Exception) else "KILLED")
            raise

    result = run_stage("train", work, attempts=attempts)
    projection = tracker(now=True)
    publish_evaluation(result, study=study)
    publish_tracked(projection, result.out, study=study)
    done = "trained" if result.is_new else "was trained before"
    message = f"{done}: {result.num_steps} steps"
    if projection is None:
        message += "; MLflow was away, `python -m tasks.tracking STUDY` shows it later"
    return Completed(message=message, data=result)


if __name__ == "__main__":
    run_command(train_reward_model)
