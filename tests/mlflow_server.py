"""A real MLflow server on a free port, as a process of its own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.prefect_server import background_process, free_port, wait_until_healthy


@contextlib.contextmanager
def mlflow_server(store_uri: str, folder: Path, *, port: int | None = None) -> Iterator[str]:
    """Run a server in front of a store and yield its URL; stop it and its workers afterwards.

    Args:
        store_uri: SQLAlchemy URI of the store's database.
        folder: Folder of the server's log and artifacts.
        port: Port on the loopback address; by default a free one.
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
    with background_process(*command, environ=environ, log=log, cwd=folder) as process:
        wait_until_healthy(f"{url}/health", process, log=log)
        yield url
