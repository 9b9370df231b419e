"""A training run in the MLflow UI, as a browser shows it: figures, checkpoints, their metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.track import sync
from tests.browser.chromium import browser_page
from tests.browser.mlflow_pictures import take_pictures
from tests.mlflow_server import mlflow_server
from tests.tasks.mlflow_store import Logged, new_template
from tests.tasks.study_files import make_study, train

_PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.services
def test_a_run_its_curves_and_its_checkpoints_are_shown(chromium: str, tmp_path: Path) -> None:
    uri = f"sqlite:///{new_template(tmp_path)}"
    study = make_study(tmp_path / "study")
    train(study, num_steps=10, is_finished=True)
    sync(study, tracking_uri=uri)
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    with mlflow_server(uri, tmp_path / "server") as url, browser_page(chromium) as page:
        take_pictures(page, url, Logged(uri), to=pictures)

    taken = sorted(path.name for path in pictures.iterdir())
    assert taken == ["mlflow-checkpoints.png", "mlflow-metrics.png", "mlflow-run.png"]
    for picture in pictures.iterdir():
        assert picture.read_bytes().startswith(_PNG)
