"""Rows of a benchmark on MLflow's compare page, as a browser shows them."""

from __future__ import annotations

from pathlib import Path

from tasks.track import sync
from tests.benchmarks.stored_world import every_row, real_pairs, write_run
from tests.browser.chromium import browser_page
from tests.browser.compare_pictures import evaluations, take_picture
from tests.mlflow_server import mlflow_server
from tests.tasks.mlflow_store import MlflowClient, new_template
from tests.training.studies import make_study

_PNG = b"\x89PNG\r\n\x1a\n"


def test_rows_stand_side_by_side(chromium: str, tmp_path: Path) -> None:
    uri = f"sqlite:///{new_template(tmp_path)}"
    study = make_study(tmp_path / "study", num_pairs=4)
    pairs = real_pairs()
    write_run(study, every_row(pairs), pairs=pairs)
    sync(study, tracking_uri=uri)
    runs = evaluations(MlflowClient(uri))
    assert {run.data.params["row"] for run in runs} == {"encore (τ 0.5)", "encore (τ 2)"}
    with mlflow_server(uri, tmp_path / "server") as url, browser_page(chromium) as page:
        take_picture(page, url, runs, to=tmp_path)
    assert (tmp_path / "mlflow-compare.png").read_bytes().startswith(_PNG)
