"""A real MLflow server on a free port, as a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.prefect_server import free_port

_START_SECONDS = 240.0
_STOP_SECONDS = 60.0


@contextlib.contextmanager
def mlflow_server(store_uri: str, folder: Path, *, port: int | None = None) -> Iterator[str]:
    """The URL of a server in front of a store; it is gone afterwards, with its workers.

    Args:
        store_uri: A database.
        folder: Where its log goes and artifacts would.
        port: On loopback; default: a free one.
    """
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store_uri),
        *("--artifacts-destination", str(folder / "artifacts")),
        *("--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
    log = folder / "mlflow.log"
    with log.open("ab") as stream:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_until_healthy(url, process, log=log)
            yield url
        finally:
            _stop(process)


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], *, log: Path) -> None:
    give_up = time.monotonic() + _START_SECONDS
    while time.monotonic() < give_up:
        assert process.poll() is None, f"the server ended: {log.read_text()}"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=5).is_success:
                return
        time.sleep(0.2)
    raise AssertionError(f"the server did not answer in {_START_SECONDS:g} s: {log.read_text()}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Its workers are children of a child: the whole group is told."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_STOP_SECONDS)
            return
