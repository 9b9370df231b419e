"""The process of a local engine: it reads an `EngineRequest` from standard input and works on it.

The pipe stays open while the parent lives. When it closes, the engine ends as after SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import closing, suppress
from functools import partial

from encore.core.command_parser import run_main, single_command
from encore.core.errors import is_disk_full
from encore.core.settings import prepare_environment
from encore.core.terminal import fail
from encore.data.study import open_study
from encore.rating.rating_options import RateConfig
from encore.runs.engine import work_as_engine
from encore.runs.local_engines import DISK_FULL_CODE, EngineRequest
from encore.scoring.scoring_options import ScoreConfig


def main() -> None:
    """Read the request and run its stage as one engine. The exit code says if a disk is full."""
    request = EngineRequest.model_validate_json(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _work(request)
    except Exception as error:
        if is_disk_full(error):
            with suppress(OSError):
                fail(str(error))
            os._exit(DISK_FULL_CODE)  # the usual exit flushes the log, which would fail again
        raise


def _work(request: EngineRequest) -> None:
    if request.stage == "rate":
        from encore.rating.rating_run import open_run

        rating = RateConfig.model_validate(request.config)
        run = open_run(open_study(rating.study), rating)
        with closing(run.judge):
            job = run.job(retries=request.retries, is_supervised=True)
            work_as_engine(job, request.spec, silence_seconds=rating.silence_seconds)
    else:
        from encore.scoring.scoring_run import score_study

        scoring = ScoreConfig.model_validate(request.config)
        run_job = partial(
            work_as_engine, spec=request.spec, silence_seconds=scoring.silence_seconds
        )
        score_study(open_study(scoring.study), scoring, retries=request.retries, run_job=run_job)


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):  # unlike sys.stdin, it holds no lock at exit
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    prepare_environment(os.environ)
    run_main(single_command(main, name="encore.cli.engine_process"), [])
