"""Take the pictures of MLflow's pages; fail if a page does not show what it should.

    python -m tests.browser.pictures demo-study/mlflow.db docs

reads the store that `make demo` leaves, through an MLflow server of its own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from tests.browser.chromium import Page, browser_page
from tests.mlflow_server import mlflow_server
from tests.tasks.mlflow_store import Logged, MlflowClient

#: As docs/compare.md says to type it into the search box.
FILTER = "tags.`encore.row_kind` = 'scheme' and tags.`encore.scheme` = 'encore'"


def look_at_training(page: Page, url: str, logged: Logged, *, to: Path) -> None:
    """The training run with the most metrics, and the checkpoints of all."""
    run = max(logged.runs().values(), key=lambda run: len(run.data.metrics))
    experiment = f"{url}/#/experiments/{logged.experiment.experiment_id}"
    page.open(f"{experiment}/runs/{run.info.run_id}", width=1700, height=1900)
    page.wait_for(run.info.run_name)
    _close_the_assistant(page)
    page.click("Model training")  # else checkpoints are called versions of agents
    page.open(f"{experiment}/runs/{run.info.run_id}", width=1700, height=1900)
    page.wait_for(run.info.run_name, "Finished", "config.learning_rate", "Ready")
    page.screenshot(to / "mlflow-run.png")
    found = logged.client.search_logged_models([logged.experiment.experiment_id])
    names = [model.name for model in found]
    page.open(f"{experiment}/models", width=2200, height=700)
    page.wait_for(*names, "Ready", "loss")
    page.screenshot(to / "mlflow-checkpoints.png")


def look_at_rows(page: Page, url: str, client: MlflowClient, *, to: Path) -> None:
    """The rows of scheme ENCORE of a benchmark on the compare page."""
    ids = [one.experiment_id for one in client.search_experiments()]
    runs = client.search_runs(ids, FILTER, order_by=["params.tau ASC"])
    assert len(runs) >= 2, f"no two runs with {FILTER}"
    shown = quote(json.dumps([run.info.run_id for run in runs]))
    experiment = quote(json.dumps([runs[0].info.experiment_id]))
    page.open(
        f"{url}/#/compare-runs?runs={shown}&experiments={experiment}", width=1700, height=1700
    )
    page.wait_for(f"Comparing {len(runs)} Runs")
    _close_the_assistant(page)
    page.wait_for("tau", "safety", *(run.data.params["row"] for run in runs))
    for part in ("Parameters", "Metrics"):
        switch = json.dumps(f"button[aria-label='{part} - Show diff only']")
        page.evaluate(f"document.querySelector({switch}).click()")
    page.wait_for("difference_ci_low")
    page.screenshot(to / "mlflow-compare.png")


def _close_the_assistant(page: Page) -> None:
    """It opens by itself beside the first page and takes a quarter of it."""
    page.evaluate(
        "[...document.querySelectorAll('button')]"
        ".find(button => /close/i.test(button.ariaLabel ?? ''))?.click()"
    )
    time.sleep(1.0)


def main() -> None:
    """Parse the command line and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path, help="an MLflow store, e.g. demo-study/mlflow.db")
    parser.add_argument("to", type=Path, help="folder for the pictures")
    chosen = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        parser.error("needs Chromium (Debian: apt install chromium)")
    uri = f"sqlite:///{chosen.store.resolve()}"
    with (
        tempfile.TemporaryDirectory() as folder,
        mlflow_server(uri, Path(folder)) as url,
        browser_page(chromium) as page,
    ):
        look_at_training(page, url, Logged(uri), to=chosen.to)
        look_at_rows(page, url, MlflowClient(uri), to=chosen.to)


if __name__ == "__main__":
    main()
