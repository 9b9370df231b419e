"""A real Prefect server on a free port, as a process of its own, and what it knows of runs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

_START_SECONDS = 240.0
_STOP_SECONDS = 60.0
_RUN_SECONDS = 400.0
_FINAL = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefectServer:
    """Where a server answers; ``environ`` is that of its clients."""

    url: str
    environ: Mapping[str, str]

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The answer of the API."""
        answer = httpx.post(f"{self.url}/api/{path}", json=body, timeout=60).raise_for_status()
        return answer.json()

    def last_flow_run(self) -> dict[str, Any]:
        """The flow run that started last."""
        [run] = self.post("flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})
        return dict(run)

    def wait_for(self, flow_run_id: str) -> dict[str, Any]:
        """The flow run when it is over."""
        give_up = time.monotonic() + _RUN_SECONDS
        while time.monotonic() < give_up:
            answer = httpx.get(f"{self.url}/api/flow_runs/{flow_run_id}", timeout=60)
            run = dict(answer.raise_for_status().json())
            if run["state_type"] in _FINAL:
                return run
            time.sleep(1)
        raise AssertionError(f"flow run {flow_run_id} was not over in {_RUN_SECONDS:g} s")

    def artifacts(self, flow_run_id: str) -> dict[str, Any]:
        """The data of a flow run's artifacts by key, the newest of each."""
        found = self.post(
            "artifacts/filter",
            {"artifacts": {"flow_run_id": {"any_": [flow_run_id]}}, "sort": "UPDATED_DESC"},
        )
        return {artifact["key"]: artifact["data"] for artifact in reversed(found)}


@contextlib.contextmanager
def running_server(folder: Path) -> Iterator[PrefectServer]:
    """A server that writes under ``folder`` only; it is gone afterwards."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environ = {
        **os.environ,
        # PREFECT_HOME alone moves neither the results nor the memo store.
        "PREFECT_HOME": str(folder),
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(folder / "storage"),
        "PREFECT_SERVER_MEMO_STORE_PATH": str(folder / "memo.toml"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        # The UI asks this address, and the default names the default port.
        "PREFECT_SERVER_UI_API_URL": f"{url}/api",
    }
    environ.pop("PREFECT_API_URL", None)
    command = ("server", "start", "--host", "127.0.0.1", "--port", str(port))
    with prefect_process(*command, environ=environ, log=folder / "server.log") as process:
        _wait_until_healthy(url, process, log=folder / "server.log")
        yield PrefectServer(url=url, environ={**environ, "PREFECT_API_URL": f"{url}/api"})


@contextlib.contextmanager
def prefect_process(
    *arguments: str, environ: Mapping[str, str], log: Path, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A ``prefect`` command in the background, stopped by SIGTERM afterwards."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", *arguments],
            env=dict(environ),
            cwd=cwd,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], *, log: Path) -> None:
    give_up = time.monotonic() + _START_SECONDS
    while time.monotonic() < give_up:
        assert process.poll() is None, f"the server ended: {log.read_text()}"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/api/health", timeout=5).is_success:
                return
        time.sleep(0.2)
    raise AssertionError(f"the server did not answer in {_START_SECONDS:g} s: {log.read_text()}")
