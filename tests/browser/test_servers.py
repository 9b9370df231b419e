"""The pages of MLflow and Prefect, as a browser shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.track import sync
from tests.benchmarks.stored_world import every_row, real_pairs, write_run
from tests.browser.chromium import browser_page
from tests.browser.pictures import (
    look_at_flow_run,
    look_at_rows,
    look_at_training,
    run_pipeline,
)
from tests.mlflow_server import mlflow_server
from tests.prefect_server import running_server
from tests.tasks.mlflow_store import Logged, MlflowClient, new_template
from tests.tasks.study_files import make_study, train
from tests.tiny_judge import make_tiny_judge

pytestmark = pytest.mark.services


def pictures_in(folder: Path) -> set[str]:
    paths = list(folder.glob("*.png"))
    assert all(path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") for path in paths)
    return {path.stem for path in paths}


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
    assert pictures_in(tmp_path) == {"mlflow-run", "mlflow-checkpoints", "mlflow-compare"}


def test_prefect_shows_a_run_its_tasks_and_its_artifacts(chromium: str, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"Q{n}", "chosen": f"Yes, {n}.", "rejected": f"No, {n}!"} for n in range(4)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    judge = make_tiny_judge(tmp_path / "tiny-judge")
    work = tmp_path / "work"
    work.mkdir()
    with running_server(tmp_path / "server") as server, browser_page(chromium) as page:
        options = ("--backend", "transformers", "--shard-size", "2")
        run = run_pipeline(server, work, {"small": pairs}, judge, *options)
        look_at_flow_run(page, server, run, tmp_path)
    assert run["state"]["message"] == "2 rated, 0 reused, 0 failed"
    expected = {"prefect-artifacts", "prefect-run", "prefect-statistics"}
    assert pictures_in(tmp_path) == expected
