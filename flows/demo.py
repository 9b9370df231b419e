"""Run the whole demo and show it in MLflow, as `make demo` does.

``python -m flows.demo STUDY``: `encore demo --full` as a command, no Prefect server, and a
tracking store in the study, whatever MLFLOW_TRACKING_URI says: example figures belong on no shared
server.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from encore.core.command_parser import run_main, single_command
from encore.core.settings import prepare_environment
from encore.core.terminal import say
from encore.recipes.recipe import DemoConfig
from tasks.tracking.store_uri import TRACKING_URI_VARIABLE
from tasks.tracking.sync import sync

_POLL_SECONDS = 1.0


def main(config: DemoConfig) -> None:
    """From preference pairs to weights, reward models and the paper's table, offline.

    The same as `encore demo --full`; trainings and every row of the table are also shown in a local
    MLflow store in the study.
    """
    os.environ.pop(TRACKING_URI_VARIABLE, None)
    num_new = run_demo(config)
    projection = sync(config.study)
    num_new += projection.num_new
    say(f"in MLflow: {num_new} runs logged now, trainings and rows of the table")
    tables = [folder for folder in projection.pages if folder.parent.name == "benchmarks"]
    say(projection.instructions(*tables))
    say("the first page lists the rows, the best first: select some, then Compare")


def run_demo(config: DemoConfig) -> int:
    """Run `encore demo --full`, and return the number of new MLflow runs.

    The store is made, which takes seconds, while the demo's judge starts. The table is logged while
    the demo draws its report.
    """
    command = [sys.executable, "-m", "encore.cli", "demo", str(config.study), "--full"]
    command += ["--backend", config.backend] if config.backend else []
    command += ["--rate-all"] if config.rate_all else []
    table = config.study / "benchmarks" / "demo" / "table.md"
    num_new = 0
    with subprocess.Popen(command) as process:  # noqa: S603 - this very program
        try:
            for awaited_file in (config.study / "study.json", table):
                while process.poll() is None and not awaited_file.exists():
                    time.sleep(_POLL_SECONDS)
                if process.returncode is None:
                    num_new += sync(config.study).num_new
            process.wait()
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise SystemExit(process.returncode)  # the demo has printed the reason
    return num_new


if __name__ == "__main__":
    prepare_environment(os.environ)
    run_main(single_command(main, name="python -m flows.demo"))
