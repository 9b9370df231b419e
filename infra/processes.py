"""Start background processes of a folder, find them again by a mark, stop them.

The mark is in the environment of each process, and its children inherit it. So a process is found
after its parent has died, and a process of another program with the same number is left alone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from encore.core.errors import EncoreError

_MARK = "ENCORE_STACK_PROCESS"
_POLL_SECONDS = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A process of a folder, under the name that it or its ancestor was started with."""

    name: str
    process: psutil.Process

    @property
    def is_started(self) -> bool:
        """Return True if this process was started itself, False for a child of one."""
        with contextlib.suppress(OSError):
            return bool(os.getsid(self.process.pid) == self.process.pid)
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A process that `start` has started.

    Attributes:
        name: Name of the process in its folder.
        log: File with its output.
        process: Handle of the process.
    """

    name: str
    log: Path
    process: subprocess.Popen[bytes]


def start(
    name: str, command: Sequence[str], folder: Path, environ: Mapping[str, str], *, cwd: Path
) -> Started:
    """Start a command in a session of its own; its output goes to the folder's log of this name."""
    log = folder / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        process = subprocess.Popen(
            command,
            env={**environ, _MARK: f"{name} {folder}"},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Started(name=name, log=log, process=process)


def wait_until(is_ready: Callable[[], bool], started: Started, *, timeout_seconds: float) -> None:
    """Wait until a process is ready.

    Raises:
        EncoreError: The process ended, or was not ready in time. The message has the last line of
            its log.
    """
    deadline = time.monotonic() + timeout_seconds
    while not is_ready():
        code = started.process.poll()
        if code is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            continue
        outcome = (
            f"was not ready in {timeout_seconds:g} s" if code is None else f"ended with {code}"
        )
        lines = started.log.read_text("utf-8", errors="replace").splitlines()
        last_line = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        raise EncoreError(f"{started.name} {outcome}: {last_line} (the whole log: {started.log})")


def members(folder: Path) -> list[Member]:
    """Return every live process that was started for the folder, and all their descendants."""
    folder_processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # of another user, or gone by now
            name, _, home = process.environ().get(_MARK, "").partition(" ")
            if home == str(folder):
                folder_processes.append(Member(name=name, process=process))
    return folder_processes


def stop(folder_processes: Sequence[Member], *, timeout_seconds: float) -> None:
    """Ask processes to end, and kill those that have not ended in time."""
    processes = [member.process for member in folder_processes]
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=timeout_seconds)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=timeout_seconds)
