"""Take the pictures of the documentation, and fail if a page does not show what it ought to.

    python -m tests.browser.pictures report demo-study docs
    python -m tests.browser.pictures mlflow demo-study/mlflow.db docs
    python -m tests.browser.pictures prefect demo-study/pairs docs

``report`` looks at the page of a study on laptop and phone, light and dark; ``mlflow`` at a store
as `make demo` leaves one; ``prefect`` runs the pipeline on the demo's pairs against a server.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from encore.demo import data_paths, judge_path
from encore.report.write_report import report
from tests.browser.chromium import Page, browser_page
from tests.mlflow_server import mlflow_server
from tests.prefect_server import PrefectServer, running_server
from tests.tasks.mlflow_store import Logged, MlflowClient

ROOT = Path(__file__).resolve().parents[2]
#: Width and height of the screens that a report is looked at on.
SCREENS = {"laptop": (1280, 800), "phone": (390, 844)}
THEMES = ("light", "dark")
#: As docs/compare.md says to type it into the search box.
FILTER = "tags.`encore.kind` = 'evaluation' and tags.`encore.scheme` = 'encore'"


def look_at_report(page: Page, file: Path, *, screen: str, theme: str) -> None:
    """Open a report's page."""
    width, height = SCREENS[screen]
    page.open(file.as_uri(), width=width, height=height, theme=theme)
    page.wait_for("Where these figures come from")


def look_at_training(page: Page, url: str, logged: Logged, *, to: Path) -> None:
    """A training run and its checkpoints."""
    run = next(run for run in logged.runs().values() if "config.learning_rate" in run.data.params)
    experiment = f"{url}/#/experiments/{logged.experiment.experiment_id}"
    page.open(f"{experiment}/runs/{run.info.run_id}", width=1700, height=1900)
    page.wait_for(run.info.run_name)
    _close_the_assistant(page)
    page.click("Model training")  # else checkpoints are called versions of agents
    page.open(f"{experiment}/runs/{run.info.run_id}", width=1700, height=1900)
    page.wait_for(run.info.run_name, "Finished", "config.learning_rate", "Ready")
    page.screenshot(to / "mlflow-run.png")
    names = [model.name for model in logged.models().values()]
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


def run_pipeline(
    server: PrefectServer, folder: Path, sources: Mapping[str, Path], judge: Path, *options: str
) -> dict[str, Any]:
    """Run the pipeline as a command in ``folder`` and return its flow run.

    What it reads is put there under its own name, so that neither logs nor parameters name a
    machine's folders.
    """
    for path in (*sources.values(), judge):
        (folder / path.name).symlink_to(path)
    command = [
        *(sys.executable, "-m", "flows.pipeline"),
        *(f"{label}={path.name}" for label, path in sources.items()),
        *("--out", "study", "--judge", judge.name, *options),
    ]
    environ = {**server.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=folder, env=environ, check=True)
    return server.last_flow_run()


def look_at_flow_run(page: Page, server: PrefectServer, run: Mapping[str, Any], to: Path) -> None:
    """A pipeline's run, its artifacts and its statistics."""
    page.open(f"{server.url}/runs/flow-run/{run['id']}", height=1000)
    page.wait_for(run["name"], "Completed", "Task Runs", "ingest", "analyze")
    page.click("Task Runs")
    page.wait_for("shard-0", "shard-1", "weigh")
    page.screenshot(to / "prefect-run.png")
    page.click("Artifacts")
    page.wait_for("rule-statistics", "rule-weights", "failed-shards", "rating-progress")
    page.screenshot(to / "prefect-artifacts.png")
    wanted = {"flow_run_id": {"any_": [run["id"]]}, "key": {"any_": ["rule-statistics"]}}
    [artifact] = server.post("artifacts/filter", {"artifacts": wanted})
    page.open(f"{server.url}/artifacts/artifact/{artifact['id']}", width=1800, height=900)
    page.wait_for("rule-statistics", "entropy (nats)", "coverage")
    page.screenshot(to / "prefect-statistics.png")


def main() -> None:
    """Parse the command line and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["report", "mlflow", "prefect"])
    parser.add_argument("source", type=Path, help="a study, an MLflow store; prefect: a new folder")
    parser.add_argument("to", type=Path, help="folder for the pictures")
    chosen = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        parser.error("needs Chromium (Debian: apt install chromium)")
    with tempfile.TemporaryDirectory() as name, browser_page(chromium) as page:
        folder = Path(name)
        if chosen.what == "report":
            file = report(chosen.source, out=folder).page
            for screen, theme in itertools.product(SCREENS, THEMES):
                look_at_report(page, file, screen=screen, theme=theme)
                page.screenshot(chosen.to / f"report-{screen}-{theme}.png")
        elif chosen.what == "mlflow":
            uri = f"sqlite:///{chosen.source.resolve()}"
            with mlflow_server(uri, folder) as url:
                look_at_training(page, url, Logged(uri), to=chosen.to)
                look_at_rows(page, url, MlflowClient(uri), to=chosen.to)
        else:
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
            chosen.source.mkdir(parents=True, exist_ok=True)
            with running_server(folder / "server") as server:
                options = ("--limit", "160", "--shard-size", "20")
                run = run_pipeline(server, chosen.source, data_paths(), judge_path(), *options)
                look_at_flow_run(page, server, run, chosen.to)


if __name__ == "__main__":
    main()
