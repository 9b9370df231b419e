"""The pages of MLflow, as a browser shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.track import sync
from tests.benchmarks.stored_world import every_row, real_pairs, write_run
from tests.browser.chromium import browser_page
from tests.browser.pictures import (
    look_at_rows,
    look_at_training,
)
from tests.mlflow_server import mlflow_server
from tests.tasks.mlflow_store import Logged, MlflowClient, new_template
from tests.tasks.study_files import make_study, train

pytestmark = pytest.mark.services


def test_mlflow_shows_a_training_its_checkpoints_and_rows_side_by_side(
    chromium: str, tmp_path: Path
) -> None:
    uri = f"sqlite:///{new_template(tmp_path)}"
    study = make_study(tmp_path / "study")
    train(study, num_steps=10, is_finished=True)
    sync(study, tracking_uri=uri)
    pairs = real_pairs()
    with mlflow_server(uri, tmp_path / "server") as url, browser_page(chromium) as page:
        look_at_training(page, url, Logged(uri), to=tmp_path)
        write_run(study, every_row(pairs), pairs=pairs)
        sync(study, tracking_uri=uri)
        look_at_rows(page, url, MlflowClient(uri), to=tmp_path)
    for name in ("mlflow-run", "mlflow-checkpoints", "mlflow-compare"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
