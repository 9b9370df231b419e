"""Trainings within the study's run, beside the rows that stand on them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from encore.training.records import SilentReporter
from encore.training.run import RunResult, write_result
from tasks.track_nested import trainings_behind
from tests.benchmarks.stored_world import every_row, real_pairs, write_run
from tests.mlflow_server import mlflow_server
from tests.tasks.mlflow_store import Logged, MlflowClient
from tests.tasks.test_model_registry import register
from tests.tasks.test_track_benchmark import assert_all_is_logged, run_with_heads, track
from tests.tasks.training_story import Story, evaluation_record
from tests.training.studies import make_study

PAIRS = real_pairs()


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return make_study(tmp_path / "study", num_pairs=4)


def trained(folder: Path) -> Path:
    """A finished training run of ten steps."""
    story = Story(folder)
    story.tell(SilentReporter())
    write_result(story.run, RunResult(num_steps=10, evaluation=asdict(evaluation_record(10))))
    return folder


def test_trainings_behind_the_rows_are_within_the_studys_run_too(study, store_uri):
    run = write_run(study, every_row(PAIRS), pairs=PAIRS)
    folder = trained(study / "training" / "one")
    assert trainings_behind([folder / "model", folder, "org/hub-id", study]) == (folder,)
    for _ in range(2):
        tracked = track(run, study, store_uri, trainings=[folder])
    runs = Logged(store_uri, experiment=tracked.experiment).runs()
    [training] = [one for one in runs if one.data.tags["encore.kind"] == "training"]
    assert training.data.tags["mlflow.parentRunId"] == tracked.run.run_id
    assert training.info.status == "FINISHED"
    assert training.data.params["config.learning_rate"] == "2e-05"
    assert training.data.metrics["eval/loss"] == pytest.approx(0.2)  # 2 / step, after the tenth
    client = MlflowClient(store_uri)
    history = client.get_metric_history(training.info.run_id, "train/loss")
    assert sorted(point.step for point in history) == list(range(1, 11))
    assert_all_is_logged(run, tracked, store_uri)


def test_a_training_that_is_not_finished_is_behind_nothing(study):
    story = Story(study / "training" / "one")
    assert trainings_behind([story.run.folder]) == ()
    story.run.manifest_path.write_text("{")
    assert trainings_behind([story.run.folder]) == ()


@pytest.mark.full
def test_over_http_rows_trainings_and_aliases_are_the_same(study, store_uri, tmp_path):
    folder = trained(study / "training" / "one")
    with mlflow_server(store_uri, tmp_path / "server") as url:
        run = run_with_heads(study)
        tracked = track(run, study, url, trainings=[folder])
        assert_all_is_logged(run, tracked, url)
        assert tracked.run.page.startswith(url)
        assert track(run, study, url, trainings=[folder]).num_new == 0
        register(study, url, 200, key="first")
        found = register(study, url, 300, key="second")
        assert (found.version, found.champion) == ("2", "2")
