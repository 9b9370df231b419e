"""Signals to processes that tests start."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

_KILL_TIMEOUT_SECONDS = 300


def enable_ctrl_c() -> None:
    """Enable Ctrl-C in a child (``preexec_fn``): a suite in the background disables it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


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
