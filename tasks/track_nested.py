"""A finished training as a run within the study's run, beside the evaluations that stand on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from encore.training.records import EvaluationRecord, TrainingResult
from encore.training.run import MANIFEST_FILE, RunResult, TrainingRun, read_result
from tasks.evaluation_words import KIND_TAG, TRAINING_KIND
from tasks.track import MlflowStore
from tasks.track_training import MlflowReporter

PARENT_TAG = "mlflow.parentRunId"


def trainings_behind(models: Sequence[str | Path]) -> tuple[Path, ...]:
    """The folders of the finished training runs that models are of, each once.

    Args:
        models: As for `encore.model.opening.open_reward_model`; of an export or a hub id it is not
            known here which training it is of.
    """
    folders = (Path(model).expanduser() for model in models)
    places = (place for folder in folders for place in (folder, folder.resolve().parent))
    return tuple(place for place in dict.fromkeys(places) if _finished_run(place) is not None)


def track_training_within(store: MlflowStore, folder: Path, *, parent_id: str) -> str:
    """Log a finished training from its own files, unless it is there, and put it under a parent.

    A training has one run in an experiment: that of its key. What was logged while it ran stays as
    it is, whichever experiment it is in.

    Args:
        store: With the evaluations' experiment open.
        folder: Of the training run.
        parent_id: The study's MLflow run.

    Returns:
        The id of its MLflow run.

    Raises:
        TrackingUnavailableError: The store does not answer.
        Exception: One of ``store.errors``.
    """
    finished = _finished_run(folder)
    assert finished is not None, "only finished trainings are behind a model"
    run, result = finished
    evaluation = result.evaluation
    reporter = MlflowReporter(store, {})
    reporter.finished(
        TrainingResult(
            out=folder,
            model_dir=run.model_dir,
            num_steps=result.num_steps,
            final_evaluation=None if evaluation is None else EvaluationRecord(**evaluation),
            is_new=False,
        )
    )
    run_id = reporter.tracked.run_id
    for name, value in {PARENT_TAG: parent_id, KIND_TAG: TRAINING_KIND}.items():
        store.client.set_tag(run_id, name, value)
    return run_id


def _finished_run(folder: Path) -> tuple[TrainingRun, RunResult] | None:
    """A folder's training run and how it ended; None where there is none that has ended."""
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        run = TrainingRun(folder=folder, identity=manifest["identity"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    result = read_result(run)
    return None if result is None else (run, result)
