"""Take the README's pictures of a training in the MLflow UI.

    python -m tests.browser.mlflow_pictures demo-study/mlflow.db docs

looks at the newest run of a store, as `make demo` leaves one, through a server of its own, and
writes ``mlflow-run.png``, ``mlflow-metrics.png`` and ``mlflow-checkpoint.png``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.browser.chromium import Page, browser_page
from tests.mlflow_server import mlflow_server
from tests.tasks.mlflow_store import Logged


def take_pictures(page: Page, url: str, logged: Logged, *, to: Path) -> None:
    """Look at the run, its curves and a checkpoint; fail if the pages do not show them."""
    run = logged.runs()[0]
    assert logged.experiment is not None
    address = f"{url}/#/experiments/{logged.experiment.experiment_id}"
    page.open(f"{address}/runs/{run.info.run_id}", height=1300)
    page.wait_for(run.info.run_name, "Finished", "eval/loss", "config.learning_rate", "READY")
    page.screenshot(to / "mlflow-run.png")

    page.open(f"{address}/runs/{run.info.run_id}/model-metrics", height=1000)
    page.wait_for("eval/loss", "train/loss", "train/learning_rate")
    page.screenshot(to / "mlflow-metrics.png")

    models = logged.models()
    newest = max(models, key=lambda name: (name.startswith("step-"), name))
    page.open(f"{address}/models/{models[newest].model_id}", height=1000)
    page.wait_for(models[newest].name, "Ready", "eval/loss")
    page.screenshot(to / "mlflow-checkpoint.png")


def main(arguments: Sequence[str]) -> None:
    """Parse the command line and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path, help="an MLflow store, e.g. demo-study/mlflow.db")
    parser.add_argument("to", type=Path, help="folder for the pictures")
    chosen = parser.parse_args(arguments)
    chromium = shutil.which("chromium")
    if chromium is None:
        parser.error("needs Chromium (Debian: apt install chromium)")
    uri = f"sqlite:///{chosen.store.resolve()}"
    with (
        tempfile.TemporaryDirectory() as folder,
        mlflow_server(uri, Path(folder)) as url,
        browser_page(chromium) as page,
    ):
        take_pictures(page, url, Logged(uri), to=chosen.to)


if __name__ == "__main__":
    main(sys.argv[1:])
