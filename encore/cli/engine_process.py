"""A local engine: ``python -m encore.cli.engine_process`` reads its request from standard input.

The pipe stays open for as long as the parent lives; when it closes, the engine ends as by SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from functools import partial

from encore.core.config import RateConfig
from encore.core.options import run_main, single_command
from encore.core.settings import prepare_environment
from encore.data.study import open_study
from encore.runs.engine import work_as_engine
from encore.runs.local_engines import EngineRequest


def main() -> None:
    """Read the request and work on it."""
    request = EngineRequest.model_validate_json(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    config = request.config
    work = partial(work_as_engine, spec=request.spec, silence_seconds=config.silence_seconds)
    study = open_study(config.study)
    if isinstance(config, RateConfig):
        from encore.rating.rating_run import rate

        rate(study, config, retries=request.retries, work=work)
    else:
        from encore.scoring.scoring_run import score_study

        score_study(study, config, retries=request.retries, work=work)


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):  # holds no lock when the interpreter ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    prepare_environment(os.environ)
    run_main(single_command(main, name="encore.cli.engine_process"), [])
