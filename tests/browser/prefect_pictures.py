"""Take the README's pictures of a pipeline run in the Prefect UI.

    python -m tests.browser.prefect_pictures docs

runs the pipeline on the demo's pairs and judge against a server of its own, and writes
``prefect-run.png``, ``prefect-artifacts.png`` and ``prefect-statistics.png``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from encore.demo import data_paths, judge_path
from tests.browser.chromium import Page, browser_page
from tests.prefect_server import PrefectServer, running_server

ROOT = Path(__file__).resolve().parents[2]


def run_pipeline(
    server: PrefectServer,
    folder: Path,
    *,
    sources: dict[str, Path],
    judge: Path,
    options: list[str],
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


def take_pictures(page: Page, server: PrefectServer, flow_run: dict[str, Any], *, to: Path) -> None:
    """Look at the run, its artifacts and its statistics; fail if the page does not show them."""
    page.open(f"{server.url}/runs/flow-run/{flow_run['id']}", height=1000)
    page.wait_for(flow_run["name"], "Completed", "Task Runs", "ingest", "analyze")
    page.click("Task Runs")
    page.wait_for("shard-0", "shard-1", "weigh")
    page.screenshot(to / "prefect-run.png")

    page.click("Artifacts")
    page.wait_for("rule-statistics", "rule-weights", "failed-shards", "rating-progress")
    page.screenshot(to / "prefect-artifacts.png")

    page.open(
        f"{server.url}/artifacts/artifact/{_artifact_id(server, flow_run)}", width=1800, height=900
    )
    page.wait_for("rule-statistics", "entropy (nats)", "coverage")
    page.screenshot(to / "prefect-statistics.png")


def _artifact_id(server: PrefectServer, flow_run: dict[str, Any]) -> str:
    body = {
        "artifacts": {
            "flow_run_id": {"any_": [flow_run["id"]]},
            "key": {"any_": ["rule-statistics"]},
        }
    }
    [artifact] = server.post("artifacts/filter", body)
    return str(artifact["id"])


def main(arguments: Sequence[str]) -> None:
    """Parse the command line and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("to", type=Path, help="folder for the pictures")
    parser.add_argument("--judge", type=Path, default=judge_path(), help="default: the demo's")
    parser.add_argument("--limit", type=int, default=160)
    parser.add_argument("--shard-size", type=int, default=20)
    chosen = parser.parse_args(arguments)
    chromium = shutil.which("chromium")
    if chromium is None:
        parser.error("needs Chromium (Debian: apt install chromium)")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name) / "work"
        work.mkdir()
        with running_server(Path(name) / "server") as server, browser_page(chromium) as page:
            flow_run = run_pipeline(
                server,
                work,
                sources=data_paths(),
                judge=chosen.judge,
                options=["--limit", str(chosen.limit), "--shard-size", str(chosen.shard_size)],
            )
            take_pictures(page, server, flow_run, to=chosen.to)


if __name__ == "__main__":
    main(sys.argv[1:])
