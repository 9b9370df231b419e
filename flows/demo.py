"""The demo, shown in MLflow: what `make demo` runs.

``python -m flows.demo --out STUDY``: the stages of `encore demo`, no Prefect server, and a tracking
store in the study, whatever MLFLOW_TRACKING_URI says: example figures belong on no shared server.
"""

from __future__ import annotations

import os

from encore.cli.demo import DemoConfig, run_demo
from encore.terminal import say
from flows.command import call_main
from tasks.track import sync
from tasks.tracking_uri import VARIABLE


def main(config: DemoConfig) -> None:
    """From preference pairs to weights, reward models and the paper's table, offline.

    The same as `encore demo`; trainings and every row of the table are also shown in a local
    MLflow store in the study.
    """
    os.environ.pop(VARIABLE, None)
    run_demo(config.study, backend=config.backend)
    tracked = sync(config.study)
    say(f"in MLflow: {tracked.num_new} runs logged now, trainings and rows of the table")
    for folder in tracked.runs:
        if folder.parent.name == "benchmarks":
            say(tracked.how_to_look(folder))
    say("its nested runs are the rows: select some, then Compare")


if __name__ == "__main__":
    call_main(main, name="flows.demo")
