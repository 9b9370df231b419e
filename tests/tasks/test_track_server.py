"""A training logged over HTTP to a real MLflow server that is killed and comes back."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tasks.track import connect
from tasks.track_training import MlflowReporter
from tests.mlflow_server import mlflow_server
from tests.prefect_server import free_port
from tests.tasks.test_track import assert_all_is_logged
from tests.tasks.training_story import Story


@pytest.mark.full
def test_a_server_that_is_killed_in_mid_training_has_everything_in_the_end(
    store_uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    server = mlflow_server(store_uri, tmp_path / "server", port=port)
    url = server.__enter__()
    reporter = MlflowReporter(connect(url, experiment="encore"), {}, log_every=1)
    stepped = reporter.stepped

    def stepped_without_a_server(record):
        nonlocal server
        if record.step == 3:
            server.__exit__(None, None, None)
        if record.step == 9:
            server = mlflow_server(store_uri, tmp_path / "server", port=port)
            server.__enter__()
        stepped(record)

    reporter.stepped = stepped_without_a_server
    try:
        with caplog.at_level(logging.WARNING, logger="tasks"):
            Story(tmp_path / "out").tell(reporter)
        assert_all_is_logged(url)
    finally:
        server.__exit__(None, None, None)

    said = [record.getMessage() for record in caplog.records if record.name.startswith("tasks")]
    assert len(said) == 2
    assert "training goes on" in said[0]
    assert "answers again" in said[1]
