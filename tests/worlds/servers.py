"""Prefect and MLflow servers on free ports, as processes of their own, and requests to them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import httpx

from infra.prefect_setup import LOOPBACK, ROOT, prefect_environment, server_command
from tests.worlds.built_once import built_once

_START_SECONDS = 240.0
_STOP_SECONDS = 60.0
_FINAL = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefectServer:
    """A running server.

    Attributes:
        url: Address without ``/api``, on loopback.
        folder: Folder of the server's database and settings.
        environ: Environment variables for processes that call the server.
    """

    url: str
    folder: Path
    environ: Mapping[str, str]

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Send a request to the API and return its answer."""
        response = httpx.post(f"{self.url}/api/{path}", json=body, timeout=60)
        return response.raise_for_status().json()

    def start_run(self, name: str, **parameters: object) -> str:
        """Start a run of the deployment ``flow/deployment`` and return the run's id."""
        deployment_id = self._get(f"deployments/name/{name}")["id"]
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return str(self.post(f"deployments/{deployment_id}/create_flow_run", body)["id"])

    def flow_run(self, flow_run_id: str) -> dict[str, Any]:
        """Return a flow run with its state."""
        return self._get(f"flow_runs/{flow_run_id}")

    def wait_for(self, flow_run_id: str, *, seconds: float = 400) -> dict[str, Any]:
        """Wait until a flow run is over and return it."""

        def final_run() -> dict[str, Any] | None:
            run = self.flow_run(flow_run_id)
            return run if run["state_type"] in _FINAL else None

        event = f"the end of flow run {flow_run_id}"
        return wait_until(final_run, seconds=seconds, event=event, pause_seconds=0.5)

    def artifacts(self, flow_run_id: str) -> dict[str, Any]:
        """Return the data of a flow run's artifacts by key, the newest of each."""
        newest_first = self.post(
            "artifacts/filter",
            {"artifacts": {"flow_run_id": {"any_": [flow_run_id]}}, "sort": "UPDATED_DESC"},
        )
        return {artifact["key"]: artifact["data"] for artifact in reversed(newest_first)}

    def _get(self, path: str) -> dict[str, Any]:
        response = httpx.get(f"{self.url}/api/{path}", timeout=60)
        return dict(response.raise_for_status().json())


def add_database(home: Path) -> None:
    """Put an empty Prefect database into a home that has none; a server takes 9 s to make it."""
    template = built_once(f"prefect-{version('prefect')}.db", _build_database)
    if not (home / "prefect.db").exists():
        home.mkdir(parents=True, exist_ok=True)
        shutil.copy(template, home / "prefect.db")


def _build_database(path: Path) -> None:
    environ = prefect_environment(path.parent, port=free_port())
    command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
    subprocess.run(command, env=environ, check=True, capture_output=True)
    (path.parent / "prefect.db").rename(path)


@contextlib.contextmanager
def running_server(folder: Path, *, port: int | None = None) -> Iterator[PrefectServer]:
    """Run a server as the local stack starts it. Afterwards it is stopped; its data stay."""
    port = port or free_port()
    url = f"http://{LOOPBACK}:{port}"
    add_database(folder / "prefect")
    environ = prefect_environment(folder / "prefect", port=port)
    log = folder.parent / f"{folder.name}.log"
    with background_process(*server_command(port), environ=environ, log=log, cwd=ROOT) as process:
        wait_until_healthy(f"{url}/api/health", process, log=log)
        client = {**environ, "PREFECT_API_URL": f"{url}/api"}
        yield PrefectServer(url=url, folder=folder, environ=client)


@contextlib.contextmanager
def mlflow_server(store_uri: str, folder: Path, *, port: int | None = None) -> Iterator[str]:
    """Run a server in front of a store and yield its URL; stop it and its workers afterwards.

    Args:
        store_uri: SQLAlchemy URI of the store's database.
        folder: Folder of the server's log and artifacts.
        port: Port on the loopback address; by default a free one.
    """
    port = port or free_port()
    url = f"http://{LOOPBACK}:{port}"
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store_uri),
        *("--artifacts-destination", str(folder / "artifacts")),
        *("--host", LOOPBACK, "--port", str(port), "--workers", "1"),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
    log = folder / "mlflow.log"
    with background_process(*command, environ=environ, log=log, cwd=folder) as process:
        wait_until_healthy(f"{url}/health", process, log=log)
        yield url


@contextlib.contextmanager
def background_process(
    *command: str, environ: Mapping[str, str], log: Path, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in the background; stop it and its children afterwards."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        process = subprocess.Popen(
            command,
            env=dict(environ),
            cwd=cwd,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):  # children may outlive the process
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=_STOP_SECONDS)


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until(
    ask: Callable[[], Answer], *, seconds: float = 60, event: str = "", pause_seconds: float = 0.2
) -> Answer:
    """Call ``ask`` until its answer is true and return it; a server that is away is asked again."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        with contextlib.suppress(httpx.TransportError):
            if answer := ask():
                return answer
        time.sleep(pause_seconds)
    raise AssertionError(f"{event or ask}: not within {seconds:g} s")


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], *, log: Path) -> None:
    """Wait until a server answers at its health address; fail if its process ends."""

    def is_healthy() -> bool:
        assert process.poll() is None, f"the server ended: {log.read_text()}"
        return httpx.get(url, timeout=5).is_success

    wait_until(is_healthy, seconds=_START_SECONDS, event=f"an answer of {url} (log: {log})")
