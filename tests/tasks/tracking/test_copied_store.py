"""A store that was copied with its study is made anew, and nothing is lost or logged twice."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from encore.data.study import open_study
from tasks.tracking.connection import TrackingUnavailableError
from tasks.tracking.copied_store import CopiedStore
from tasks.tracking.study_runs import KEY_TAG, read_tables
from tasks.tracking.sync import sync
from tests.tasks.tracking.conftest import TABLES, logged
from tests.tasks.tracking.mlflow_store import MlflowClient, Run
from tests.tasks.tracking.study_files import benchmark, train
from tests.worlds.studies import file_digests


def client_of(study: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{study / 'mlflow.db'}")


def runs_of(study: Path) -> list[Run]:
    client = client_of(study)
    experiments = client.search_experiments()
    return client.search_runs([experiment.experiment_id for experiment in experiments])


def run_ids_of(study: Path) -> set[str]:
    return {run.info.run_id for run in runs_of(study)}


def file_names(study: Path, run: Run, folder: str = "") -> list[str]:
    """Return the names of a run's artifacts, in all folders."""
    names: list[str] = []
    for file in client_of(study).list_artifacts(run.info.run_id, folder):
        names += file_names(study, run, file.path) if file.is_dir else [file.path]
    return names


def contents(study: Path) -> Counter[str]:
    """Return every run without ids, times and paths, and how often it is there."""
    client = client_of(study)
    counts: Counter[str] = Counter()
    for run in runs_of(study):
        histories = {
            name: [
                (point.step, str(point.value))
                for point in client.get_metric_history(run.info.run_id, name)
            ]
            for name in run.data.metrics
        }
        tags = {
            name: value
            for name, value in run.data.tags.items()
            if name not in ("mlflow.parentRunId", "encore.out")
        }
        datasets = sorted(data.dataset.digest for data in run.inputs.dataset_inputs)
        files = sorted(file_names(study, run))
        content = [run.info.run_name, run.info.status, run.data.params, tags, histories, datasets]
        counts[json.dumps([*content, files], sort_keys=True)] += 1
    return counts


def copy_of(study: Path, tmp_path: Path) -> Path:
    """Copy a study to another folder. It keeps its name, so its runs keep their keys."""
    return Path(shutil.copytree(study, tmp_path / "elsewhere" / "study"))


def use_earlier_keys(study: Path) -> None:
    """Give the runs of a table the keys that an earlier version gave them."""
    client = client_of(study)
    for table in read_tables(open_study(study)):
        runs = [table.parent, *table.rows.values()]
        earlier_keys = {run.key: run.earlier_key for run in runs}
        for run in runs_of(study):
            if earlier_key := earlier_keys.get(run.data.tags.get(KEY_TAG, "")):
                client.set_tag(run.info.run_id, KEY_TAG, earlier_key)


@pytest.fixture
def logged_study(study: Path) -> Path:
    """Return a study in MLflow with a training, a table, and a run and a tag made by people."""
    train(study, num_steps=4, is_finished=True)
    benchmark(study)
    sync(study)
    client = logged(study).client
    client.set_tag(logged(study).run().info.run_id, "team", "safety")
    run_of_people = client.create_run(client.create_experiment("notes"), run_name="ours")
    run_id = run_of_people.info.run_id
    client.log_param(run_id, "judge", "j")
    for step, value in enumerate((0.5, 0.25)):
        client.log_metric(run_id, "weight", value, step=step)
    client.set_terminated(run_id, "FINISHED")
    return study


@pytest.mark.parametrize("is_of_earlier_version", [False, True])
def test_all_runs_of_a_copy_are_readable_when_the_original_is_deleted(
    logged_study, tmp_path, is_of_earlier_version
):
    before = contents(logged_study)
    copy = copy_of(logged_study, tmp_path)
    if is_of_earlier_version:  # no record of the path that the store was made for
        (copy / ".mlflow.db.made-for").unlink()
    shutil.rmtree(logged_study)
    assert sync(copy).num_new == 0, "runs of a store that is made anew are not new runs"
    assert contents(copy) == before

    runs = runs_of(copy)
    for run in runs:
        folder = Path(unquote(urlsplit(run.info.artifact_uri).path))
        assert folder.is_relative_to(copy)
        for name in file_names(copy, run):
            downloaded = client_of(copy).download_artifacts(run.info.run_id, name)
            assert Path(downloaded).read_bytes()
    parents = {run.data.tags.get("mlflow.parentRunId") for run in runs}
    assert parents - {None} == {logged(copy, TABLES).runs()["study"].info.run_id}
    model_paths = {model.tags["encore.path"] for model in logged(copy).models().values()}
    assert all(Path(path).is_relative_to(copy) for path in model_paths)
    kept_folders = {path.name for path in (copy / "mlflow-artifacts").iterdir()} - {"models"}
    assert kept_folders <= {run.info.run_id for run in runs}, "the copied artifacts are deleted"


def test_a_copied_study_leaves_the_original_as_it_is(logged_study, tmp_path):
    before = file_digests(logged_study)
    copy = copy_of(logged_study, tmp_path)
    benchmark(copy, key="fedcba9876543210", num_rows=2)
    sync(copy)
    train(copy, num_steps=6, is_finished=True)
    sync(copy)
    assert file_digests(logged_study) == before
    assert logged(copy).steps("train/loss") == [1, 2, 3, 4]  # it was finished with four
    assert len(logged(copy, TABLES).runs()) == 4


def test_a_renamed_copy_has_every_run_once(logged_study, tmp_path):
    copy = Path(shutil.copytree(logged_study, tmp_path / "renamed"))
    sync(copy)
    assert len(runs_of(copy)) == len(runs_of(logged_study)) == 6


def test_a_copy_with_runs_that_an_earlier_version_logged_has_every_run_once(logged_study, tmp_path):
    use_earlier_keys(logged_study)
    copy = copy_of(logged_study, tmp_path)
    assert sync(copy).num_new == 0
    assert len(runs_of(copy)) == 6


def test_a_store_is_made_anew_once(logged_study, tmp_path):
    copy = copy_of(logged_study, tmp_path)
    sync(copy)
    run_ids = run_ids_of(copy)
    sync(copy)
    assert run_ids_of(copy) == run_ids
    assert run_ids.isdisjoint(run_ids_of(logged_study))


def test_a_store_of_an_earlier_version_stays_as_it_is_where_it_was_made(logged_study):
    run_ids = run_ids_of(logged_study)
    record = logged_study / ".mlflow.db.made-for"
    record.unlink()
    sync(logged_study)
    assert run_ids_of(logged_study) == run_ids
    assert record.read_text() == str(logged_study.resolve() / "mlflow.db")


def test_a_training_goes_on_in_the_copy(study, tmp_path):
    train(study, num_steps=3)
    sync(study, end_status="KILLED")
    copy = copy_of(study, tmp_path)
    sync(copy)
    assert logged(copy).run().info.status == "KILLED"
    train(copy, num_steps=6, is_finished=True)
    sync(copy)
    assert logged(copy).steps("train/loss") == [1, 2, 3, 4, 5, 6]
    assert logged(copy).run().info.status == "FINISHED"


def test_a_crash_while_a_store_is_made_anew_loses_nothing(logged_study, tmp_path, monkeypatch):
    before = contents(logged_study)
    copy = copy_of(logged_study, tmp_path)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    for step in ("copy_runs", "copy_registered_models"):
        with monkeypatch.context() as patch:
            patch.setattr(CopiedStore, step, die)
            with pytest.raises(KeyboardInterrupt):
                sync(copy)
    (copy / ".mlflow-work-of-a-killed-process").mkdir()
    sync(copy)
    assert contents(copy) == before
    assert not list(copy.glob(".mlflow-work-*"))


def test_a_run_stays_in_its_experiment(study, tmp_path):
    train(study, num_steps=2)
    sync(study, experiment="team")
    copy = copy_of(study, tmp_path)
    sync(copy)
    assert len(logged(copy, "team").runs()) == 1
    names = {experiment.name for experiment in client_of(copy).search_experiments()}
    assert names == {"Default", "team"}


def test_a_moved_store_outside_the_study_is_refused_and_stays_as_it_is(study, tmp_path):
    """It may have runs of other studies, which the files of this study do not have."""
    train(study, num_steps=2)
    sync(study, tracking_uri=f"sqlite:///{tmp_path / 'shared' / 'runs.db'}")
    moved = (tmp_path / "shared").rename(tmp_path / "moved")
    before = file_digests(moved)
    uri = f"sqlite:///{moved / 'runs.db'}"
    with pytest.raises(TrackingUnavailableError, match="was copied or moved"):
        sync(study, tracking_uri=uri)
    assert file_digests(moved) == before


def test_a_copied_store_whose_artifacts_are_a_link_to_the_original_is_refused(
    logged_study, tmp_path
):
    copy = copy_of(logged_study, tmp_path)
    shutil.rmtree(copy / "mlflow-artifacts")
    (copy / "mlflow-artifacts").symlink_to(logged_study / "mlflow-artifacts")
    before = file_digests(logged_study)
    with pytest.raises(TrackingUnavailableError, match="is a link"):
        sync(copy)
    assert file_digests(logged_study) == before
