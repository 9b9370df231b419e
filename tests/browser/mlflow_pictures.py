"""Take the README's pictures of a training in the MLflow UI.

    python -m tests.browser.mlflow_pictures demo-study/mlflow.db docs

looks at the newest run of a store, as `make demo` leaves one, through a server of its own, and
writes ``mlflow-run.png``, ``mlflow-metrics.png`` and ``mlflow-checkpoints.png``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.browser.chromium import Page
from tests.browser.picture_command import run_picture_command
from tests.tasks.mlflow_store import Logged


def take_pictures(page: Page, url: str, logged: Logged, *, to: Path) -> None:
    """Look at the run, its curves and its checkpoints; fail if the pages do not show them."""
    [run] = logged.runs().values()
    assert logged.experiment is not None
    experiment = f"{url}/#/experiments/{logged.experiment.experiment_id}"
    page.open(f"{experiment}/runs/{run.info.run_id}", width=1700, height=1900)
    page.wait_for(run.info.run_name)
    close_the_assistant(page)
    page.click("Model training")  # else checkpoints are called versions of agents
    page.open(f"{experiment}/runs/{run.info.run_id}", width=1700, height=1900)
    page.wait_for(run.info.run_name, "Finished", "eval/loss", "config.learning_rate", "Ready")
    page.screenshot(to / "mlflow-run.png")

    page.open(f"{experiment}/runs/{run.info.run_id}/model-metrics", width=1700, height=1000)
    page.wait_for("Model metrics", "(eval/loss)", "eval/accuracy_half", "eval/r2")
    page.screenshot(to / "mlflow-metrics.png")

    names = [model.name for model in logged.models().values()]
    page.open(f"{experiment}/models", width=2200, height=700)
    page.wait_for(*names, "Ready", "loss")
    page.screenshot(to / "mlflow-checkpoints.png")


def close_the_assistant(page: Page) -> None:
    """It opens by itself beside the first page and takes a quarter of it."""
    page.evaluate(
        "[...document.querySelectorAll('button')]"
        ".find(button => /close/i.test(button.ariaLabel ?? ''))?.click()"
    )
    time.sleep(1.0)


def main(arguments: Sequence[str]) -> None:
    """Parse the command line and take the pictures."""

    def take(page: Page, url: str, uri: str, to: Path) -> None:
        take_pictures(page, url, Logged(uri), to=to)

    run_picture_command(__doc__, arguments, take)


if __name__ == "__main__":
    main(sys.argv[1:])
