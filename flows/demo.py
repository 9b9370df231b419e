"""The demo, its trainings and its table logged to MLflow: what `make demo` runs.

``python -m flows.demo --out STUDY``: the stages of `encore demo`, no Prefect server, and a tracking
store in the study, whatever MLFLOW_TRACKING_URI says: example figures belong on no shared server.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import which

from encore.benchmarks.run import BenchmarkRun
from encore.cli.demo import DEFAULT_STUDY, BackendOption, StudyOption, run_demo
from encore.cli.output import say
from flows.command import run_command
from tasks.run_history import rating_params
from tasks.track_benchmark import track_table
from tasks.track_nested import trainings_behind
from tasks.track_training import DEFAULT_EXPERIMENT, MlflowReporter, tracked_training
from tasks.tracking_uri import choose_tracking_uri


def main(study: StudyOption = DEFAULT_STUDY, backend: BackendOption = None) -> None:
    """From preference pairs to weights, reward models and the paper's table, offline.

    The same as `encore demo`; trainings and every row of the table are also logged to a local
    MLflow store in the study.
    """
    run_demo(study, backend=backend, tracker=_LocalMlflow())


class _LocalMlflow:
    """Logs to a store in the study, and says how to look at it once all is there."""

    @contextmanager
    def training(self, study: Path, *, has_ratings: bool) -> Iterator[MlflowReporter]:
        """A run of its own for each training."""
        about = rating_params(study, run=None, judge=None) if has_ratings else {}
        with tracked_training(choose_tracking_uri(study, environ={}), about=about) as reporter:
            yield reporter

    def table(self, run: BenchmarkRun, *, study: Path, models: Sequence[Path]) -> None:
        """A run of the study; within it its trainings, and an evaluation run for each row."""
        uri = choose_tracking_uri(study, environ={})
        tracked = track_table(run, study=study, uri=uri, trainings=trainings_behind(models))
        num_rows, num_new = len(tracked.run_ids), tracked.num_new
        say(
            f"in MLflow: {num_rows} rows in experiment {tracked.experiment} ({num_new} logged "
            f"now), trainings in experiment {DEFAULT_EXPERIMENT}; start its pages on this machine:"
        )
        say(f"  {_where_mlflow_is()}{tracked.run.command}")
        say("then open the study's run; its nested runs are the rows: select some, then Compare")
        say(f"  {tracked.run.local_page}")


def _where_mlflow_is() -> str:
    """Nothing where the shell finds it, else the folder of this Python."""
    return "" if which("mlflow") else f"{os.path.relpath(Path(sys.executable).parent)}/"


if __name__ == "__main__":
    run_command(main)
