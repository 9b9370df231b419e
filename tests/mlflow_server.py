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
    with background_process(*command, environ=environ, log=log, cwd=folder) as process:
        wait_until_healthy(f"{url}/health", process, log=log)
        yield url
