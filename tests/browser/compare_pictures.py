"""Take the picture of MLflow's compare page in docs/compare.md.

    python -m tests.browser.compare_pictures demo-study/mlflow.db docs

looks at the rows of scheme ENCORE in the newest experiment of a store that has some, and writes
``mlflow-compare.png``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from tests.browser.chromium import Page
from tests.browser.mlflow_pictures import close_the_assistant
from tests.browser.picture_command import run_picture_command
from tests.tasks.mlflow_store import MlflowClient, Run

#: As docs/compare.md says to type it into the search box.
FILTER = "tags.`encore.kind` = 'evaluation' and tags.`encore.scheme` = 'encore'"


def evaluations(client: MlflowClient, *, filter_string: str = FILTER) -> list[Run]:
    """The runs of the newest experiment that has such ones."""
    for experiment in client.search_experiments():
        found = client.search_runs(
            [experiment.experiment_id], filter_string, order_by=["params.tau ASC"]
        )
        if found:
            return list(found)
    raise AssertionError(f"no experiment has runs with {filter_string}")


def take_picture(page: Page, url: str, runs: Sequence[Run], *, to: Path) -> None:
    """Look at the compare page of runs; fail if it does not show them."""
    ids = quote(json.dumps([run.info.run_id for run in runs]))
    experiment = quote(json.dumps([runs[0].info.experiment_id]))
    page.open(f"{url}/#/compare-runs?runs={ids}&experiments={experiment}", width=1700, height=1700)
    page.wait_for(f"Comparing {len(runs)} Runs")
    close_the_assistant(page)
    page.wait_for("tau", "safety", *(run.data.params["row"] for run in runs))
    _show_differences_alone(page)
    page.wait_for("difference_ci_low")
    page.screenshot(to / "mlflow-compare.png")


def _show_differences_alone(page: Page) -> None:
    """Hide the parameters and metrics that all rows share."""
    for part in ("Parameters", "Metrics"):
        switch = json.dumps(f"button[aria-label='{part} - Show diff only']")
        page.evaluate(f"document.querySelector({switch}).click()")


def main(arguments: Sequence[str]) -> None:
    """Parse the command line and take the picture."""

    def take(page: Page, url: str, uri: str, to: Path) -> None:
        take_picture(page, url, evaluations(MlflowClient(uri)), to=to)

    run_picture_command(__doc__, arguments, take)


if __name__ == "__main__":
    main(sys.argv[1:])
