"""The demo, its training logged to MLflow: what `make demo` runs.

``python -m flows.demo --out STUDY``: the stages of `encore demo`, no Prefect server, and a tracking
store in the study, whatever MLFLOW_TRACKING_URI says: example figures belong on no shared server.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which

from encore.cli.demo import DEFAULT_STUDY, BackendOption, StudyOption, run_demo
from encore.cli.output import say
from flows.command import run_command
from tasks.run_history import rating_params
from tasks.track_training import MlflowReporter, tracked_training
from tasks.tracking_uri import choose_tracking_uri


def main(study: StudyOption = DEFAULT_STUDY, backend: BackendOption = None) -> None:
    """From preference pairs to weights and a reward model on shipped synthetic data, offline.

    The same as `encore demo`; the training is also logged to a local MLflow store in the study.
    """
    run_demo(study, backend=backend, tracking=_tracked)


@contextmanager
def _tracked(study: Path) -> Iterator[MlflowReporter]:
    about = rating_params(study, run=None, judge=None)
    with tracked_training(choose_tracking_uri(study, environ={}), about=about) as reporter:
        yield reporter
    tracked = reporter.tracked
    say("the training in MLflow: start its pages on this machine, then open the run")
    say(f"  {_where_mlflow_is()}{tracked.command}")
    say(f"  {tracked.local_page}")


def _where_mlflow_is() -> str:
    """Nothing where the shell finds it, else the folder of this Python."""
    return "" if which("mlflow") else f"{os.path.relpath(Path(sys.executable).parent)}/"


if __name__ == "__main__":
    run_command(main)
