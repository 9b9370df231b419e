"""MLflow shows what a study's files contain, once, whatever happened before."""

from __future__ import annotations

import json
import logging
import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from encore.core.errors import InputError
from tasks.flow_reporter import Tracker
from tasks.tracking.connection import NotMLflowError, TrackingUnavailableError
from tasks.tracking.store_uri import TRACKING_URI_VARIABLE
from tasks.tracking.sync import sync
from tasks.tracking.tracking_options import TrackingConfig
from tests.tasks.tracking.conftest import TABLES, logged
from tests.tasks.tracking.mlflow_store import Logged, Run, copy_store
from tests.tasks.tracking.study_files import benchmark, train
from tests.worlds.servers import free_port, mlflow_server

pytestmark = pytest.mark.services


@pytest.fixture
def store_uri(mlflow_template: Path, tmp_path: Path) -> str:
    """Return the URI of a store that studies share."""
    return copy_store(mlflow_template, tmp_path / "shared" / "mlflow.db")


def data_of(run: Run) -> set[tuple[str, str, str]]:
    """Return name, digest and context of a run's data sets."""
    inputs = run.inputs.dataset_inputs
    datasets = {(data.dataset.name, data.dataset.digest, data.tags[0].value) for data in inputs}
    assert len(datasets) == len(inputs), "a data set is logged twice"
    return datasets


def test_a_training_is_logged_while_it_grows_and_nothing_of_it_twice(study):
    train(study, num_steps=3)
    assert sync(study).num_new == 1
    store = logged(study)
    assert store.run().info.status == "RUNNING"
    assert store.steps("train/loss") == [1, 2, 3]

    train(study, num_steps=6, is_finished=True)
    assert sync(study).num_new == 0
    sync(study)  # finished: nothing is left to do
    run = store.run()
    assert run.info.status == "FINISHED"
    assert store.steps("train/loss") == [1, 2, 3, 4, 5, 6]
    assert store.steps("eval/r2/kind") == [2, 4, 6]
    assert run.data.metrics["eval/loss"] == pytest.approx(2 / 6)
    assert "train/mfu" not in run.data.metrics  # what was not measured is not there
    assert run.data.params["config.learning_rate"] == "2e-05"
    assert run.data.params["config.adam_betas"] == "[0.9, 0.999]"
    assert run.data.tags["encore.synthetic"] == "pairs"
    assert "a note" in run.data.tags["mlflow.note.content"]
    assert run.data.tags["mlflow.source.name"] == "encore 0.1.0"
    assert data_of(run) == {
        ("study", ("da" * 32)[:36], "training"),
        ("ratings by j", ("f5" * 32)[:36], "training"),
    }
    files = {file.path for file in store.client.list_artifacts(run.info.run_id)}
    assert files == {"training.json", "log.jsonl", "evaluations.jsonl", "result.json"}


def test_each_checkpoint_is_a_model_with_its_evaluation_and_an_on_disk_tag(study):
    train(study, num_steps=2)
    sync(study)
    folder = train(study, num_steps=6, is_finished=True)
    sync(study)
    store = logged(study)
    models = store.models()
    assert set(models) == {"step-00000002", "step-00000004", "step-00000006", "model"}
    assert all(str(model.status) == "READY" for model in models.values())
    on_disk = {name: model.tags["encore.on_disk"] for name, model in models.items()}
    assert on_disk == {**dict.fromkeys(models, "yes"), "step-00000002": "no"}
    assert models["model"].tags["encore.path"] == str(folder / "model")
    figures = {metric.key: metric.value for metric in models["step-00000004"].metrics}
    assert figures == {"eval/loss": 0.5, "eval/r2/kind": pytest.approx(0.4)}
    assert store.steps("eval/loss") == [2, 4, 6], "metrics of a model are the run's own"
    outputs = store.run().outputs.model_outputs
    assert {output.model_id for output in outputs} == {model.model_id for model in models.values()}


def test_steps_that_are_repeated_after_a_crash_are_logged_once(study):
    train(study, num_steps=5)
    sync(study, end_status="KILLED")
    assert logged(study).run().info.status == "KILLED"
    train(study, num_steps=4)
    sync(study)
    train(study, num_steps=7)
    sync(study)
    assert logged(study).steps("train/loss") == [1, 2, 3, 4, 5, 6, 7]
    assert logged(study).run().info.status == "RUNNING"


def test_every_row_of_a_table_is_a_run_with_the_same_names_within_the_studys_run(study):
    folder = benchmark(study)
    projection = sync(study)
    assert (projection.num_new, sync(study).num_new) == (4, 0)
    store = logged(study, TABLES)
    runs = store.runs()
    parent = runs.pop("study")
    assert set(runs) == {"uniform", "encore (τ 2)", "random (100 draws)"}
    for run in runs.values():
        assert run.info.status == "FINISHED"
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.data.tags[f"encore.table.{folder.name}"] == "yes"
    names = {(frozenset(run.data.params), frozenset(run.data.metrics)) for run in runs.values()}
    assert len(names) == 1, "the compare page lines runs up by names"

    encore, mean = runs["encore (τ 2)"].data, runs["random (100 draws)"].data
    assert {encore.params[name] for name in ("scheme", "tau", "k", "rule")} == {
        *("encore", "2.0", "NaN", "none")
    }
    assert (mean.params["scheme"], mean.params["ratings_judge"]) == ("random", "none")
    assert (encore.params["ratings_judge"], encore.params["model"]) == ("j", "tiny")
    assert encore.metrics["accuracy"] == pytest.approx(0.6)
    assert encore.metrics["subset/refuse_ci_high"] == 0.95
    assert runs["uniform"].data.metrics["difference"] == 0
    assert math.isnan(mean.metrics["mcnemar_p"])
    assert mean.metrics["draws_low"] == 0.6
    assert encore.tags["mlflow.note.content"].endswith("of the table")  # not of uniform

    files = store.client.list_artifacts(parent.info.run_id, f"tables/{folder.name}")
    assert {Path(file.path).name for file in files} == {
        *("table.json", "table.md", "results.parquet")
    }


def test_the_studys_run_has_the_best_row_and_every_run_its_data_sets(study):
    folder = benchmark(study)
    pages = sync(study).pages[folder.resolve()]
    assert all("?workflowType=machine_learning" in page for page in pages)
    runs = logged(study, TABLES).runs()
    parent = runs["study"]
    tested = ("generic", ("d1" * 32)[:36], "evaluation")
    rated = ("ratings by j", ("f5" * 32)[:36], "weighting")
    pairs = ("study", parent.data.params["study_sha256"][:36], "training")
    assert data_of(parent) == data_of(runs["uniform"]) == {tested, rated, pairs}
    assert data_of(runs["random (100 draws)"]) == {tested}
    # The mean over draws is the best of the three, at 0.7; uniform weights have 0.5.
    assert parent.data.metrics == pytest.approx(
        {
            "best_accuracy": 0.7,
            "best_accuracy_ci_low": 0.25,
            "best_accuracy_ci_high": 0.95,
            "reference_accuracy": 0.5,
            "num_pairs": 4,
            "num_rows": 3,
        }
    )
    assert parent.data.tags["mlflow.source.name"].startswith("encore ")
    summary = "generic 1.0, 4 pairs. Best of 3 rows: random (100 draws) 0.700. Reference: uniform"
    assert parent.data.tags["mlflow.note.content"].startswith(summary)


def test_a_smaller_second_table_logs_no_row_again(study):
    """The tag of a table marks its rows, also those that two tables share."""
    benchmark(study)
    sync(study)
    benchmark(study, key="fedcba9876543210", num_rows=2)
    assert sync(study).num_new == 0
    runs = logged(study, TABLES).runs()
    of_second = {
        name for name, run in runs.items() if "encore.table.fedcba9876543210" in run.data.tags
    }
    assert of_second == {"study", "uniform", "encore (τ 2)"}


def test_a_table_that_a_crash_left_half_logged_is_completed(study, monkeypatch):
    """The crash comes after the rows, before the study's run is tagged with the table."""
    benchmark(study)
    import mlflow

    with monkeypatch.context() as patch:

        def die(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(mlflow.MlflowClient, "log_text", die)
        with pytest.raises(KeyboardInterrupt):
            sync(study)
    sync(study)
    runs = logged(study, TABLES).runs()
    assert len(runs) == 4
    assert {run.info.status for run in runs.values()} == {"FINISHED"}


def test_two_callers_at_once_log_nothing_twice(study):
    train(study, num_steps=4)
    benchmark(study)
    with ThreadPoolExecutor(2) as pool:
        for call in [pool.submit(sync, study) for _ in range(2)]:
            call.result()
    assert logged(study).steps("train/loss") == [1, 2, 3, 4]
    assert len(logged(study, TABLES).runs()) == 4


def test_a_logged_run_is_not_logged_in_another_experiment(study):
    train(study, num_steps=3)
    benchmark(study)
    sync(study)
    train(study, num_steps=4, is_finished=True)
    assert sync(study, experiment="team").num_new == 0
    assert logged(study).steps("train/loss") == [1, 2, 3, 4]
    names = {experiment.name for experiment in logged(study).client.search_experiments()}
    assert names == {"Default", "encore", TABLES}


@pytest.mark.parametrize("answer", ["<html>hello</html>", "[]", None])
def test_an_address_of_another_service_is_refused(study, tmp_path, answer):
    search = tmp_path / "site" / "api/2.0/mlflow/experiments/search"
    search.parent.mkdir(parents=True)
    if answer:
        search.write_text(answer)
    serve = partial(SimpleHTTPRequestHandler, directory=tmp_path / "site")
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(
            NotMLflowError, match=r"^[^\n]*another service answers[^\n]*$"
        ) as refused:
            sync(study, tracking_uri=uri)
        with pytest.raises(NotMLflowError):  # before a stage has worked for hours
            Tracker(study, TrackingConfig(tracking_uri=uri))
        server.shutdown()
    assert refused.value.exit_code == 1


def test_an_outage_is_one_warning_without_password_and_the_next_call_catches_up(
    study, caplog, monkeypatch
):
    train(study, num_steps=3)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, logger="tasks"):
        patch.setenv(TRACKING_URI_VARIABLE, f"http://me:hunter2@127.0.0.1:{free_port()}")
        with pytest.raises(TrackingUnavailableError, match="it does not take what the study has"):
            sync(study)
        tracker = Tracker(study, TrackingConfig())
        assert tracker(now=True) is None
        assert tracker() is None  # not asked again at once
    assert len(caplog.records) == 1
    assert "the next call logs what is missing" in caplog.text
    assert "http://me:***@" in caplog.text
    assert "hunter2" not in caplog.text
    assert Tracker(study, TrackingConfig())().num_new == 1
    assert logged(study).steps("train/loss") == [1, 2, 3]


def test_a_server_that_was_killed_has_everything_in_the_end(study, tmp_path, mlflow_template):
    store, port = copy_store(mlflow_template, tmp_path / "server" / "mlflow.db"), free_port()
    train(study, num_steps=3)
    with mlflow_server(store, tmp_path / "server", port=port) as url:
        sync(study, tracking_uri=url)
    train(study, num_steps=6)
    with pytest.raises(TrackingUnavailableError):
        sync(study, tracking_uri=url)
    with mlflow_server(store, tmp_path / "server", port=port) as url:
        projection = sync(study, tracking_uri=url)
        assert Logged(url).steps("train/loss") == [1, 2, 3, 4, 5, 6]
        [folder] = projection.pages
        assert f"<{url}/#/experiments/" in projection.instructions(folder)


def test_a_copy_of_a_study_under_another_name_logs_nothing_twice(study, tmp_path, store_uri):
    train(study, num_steps=3)
    benchmark(study)
    assert sync(study, tracking_uri=store_uri).num_new == 5  # a training, three rows, their study
    copy = Path(shutil.copytree(study, tmp_path / "renamed"))
    assert sync(copy, tracking_uri=store_uri).num_new == 0
    runs = Logged(store_uri, experiment=TABLES).runs()
    assert len(runs) == 4
    assert len(data_of(runs["study"])) == 3  # the pairs once, under the name of the first folder


def test_a_training_of_an_earlier_version_is_named(study):
    train(study, num_steps=3)
    [path] = study.glob("training/*/training.json")
    manifest = json.loads(path.read_text("utf-8"))
    del manifest["config"]
    path.write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(InputError, match=f"{path.parent}: a training of an earlier version"):
        sync(study)
