"""Signals to processes that tests start."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.worlds.servers import wait_until

_KILL_TIMEOUT_SECONDS = 300


@contextmanager
def encore_process(*arguments: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start `encore` as a shell does, in a process that hears Ctrl-C. The end kills it.

    Args:
        arguments: Arguments of the command.
        options: Options of `subprocess.Popen`, such as another ``stderr`` than a pipe.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "encore.cli", *map(str, arguments)],
        text=True,
        # A suite in the background disables Ctrl-C, also in its children.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def start_and_kill(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    progress: Callable[[], object],
    rng: random.Random,
    latest_seconds: float,
) -> None:
    """Start a command and kill -9 it at a random moment after its progress on disk has changed."""
    before = progress()
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def has_advanced() -> bool:
        assert process.poll() is None, f"the process ended with {process.returncode}"
        return progress() != before

    wait_until(has_advanced, seconds=_KILL_TIMEOUT_SECONDS, pause_seconds=0.002)
    time.sleep(rng.random() * latest_seconds)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run was over before it could be killed"
