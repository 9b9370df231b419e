"""Signals to processes that tests start."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

_KILL_TIMEOUT_SECONDS = 300


def enable_ctrl_c() -> None:
    """Enable Ctrl-C in a child (``preexec_fn``): a suite in the background disables it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


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
        preexec_fn=enable_ctrl_c,  # noqa: PLW1509 - sets one signal
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
    deadline = time.monotonic() + _KILL_TIMEOUT_SECONDS
    while progress() == before:
        assert process.poll() is None, f"the process ended with {process.returncode}"
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.002)
    time.sleep(rng.random() * latest_seconds)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run was over before it could be killed"
