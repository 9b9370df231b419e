"""A client of an MLflow store; whatever goes wrong becomes one line without passwords."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx

from encore.core.errors import EncoreError
from encore.core.settings import prepare_environment
from tasks.tracking.local_store import make_store
from tasks.tracking.store_uri import TRACKING_URI_VARIABLE, hide_secrets, sqlite_path

if TYPE_CHECKING:
    from mlflow import MlflowClient

#: MLflow retries a database for minutes before it says that nothing listens.
_DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_CONNECT_SECONDS = 10.0
_MAX_MESSAGE_LENGTH = 300
#: An MLflow server answers this with a JSON object; one behind a login, or restarting, does not.
_SEARCH_PATH = "/api/2.0/mlflow/experiments/search?max_results=1"
#: Answers of a login or a proxy in front of a server.
_PROXY_STATUS_CODES = (401, 403, 407, 429)


class TrackingUnavailableError(EncoreError):
    """MLflow does not answer, or not as it should."""


class NotMLflowError(TrackingUnavailableError):
    """Another service answers at the address of the tracking server."""


@contextlib.contextmanager
def connected(uri: str) -> Iterator[MlflowClient]:
    """Yield a client of a store. The file of an SQLite store is made if it does not exist.

    Raises:
        TrackingUnavailableError: MLflow or its connection raised an error.
    """
    with mlflow_errors(uri):
        from mlflow import MlflowClient

        path = sqlite_path(uri)
        if path is None:
            check_server(uri)
        elif not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            make_store(path)
        yield MlflowClient(uri)


@contextlib.contextmanager
def mlflow_errors(uri: str) -> Iterator[None]:
    """Turn errors of MLflow, its database and the network into a `TrackingUnavailableError`."""
    prepare_environment()
    # MLflow logs every failed query with its traceback; the error below says it once.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, httpx.HTTPError, OSError) as error:
        message = " ".join(hide_secrets(str(error), uri=uri).split())[:_MAX_MESSAGE_LENGTH]
        raise TrackingUnavailableError(
            f"MLflow {hide_secrets(uri, uri=uri)}: it does not take what the study has ({message});"
            " start the server, or give another --tracking-uri; everything is in the study's "
            "files, and `python -m tasks.tracking STUDY` shows it later"
        ) from error


def check_server(uri: str) -> None:
    """Check at once what MLflow would notice after minutes of retries, or with a traceback.

    Raises:
        NotMLflowError: Another service answers.
        OSError, httpx.HTTPError: No service answers.
    """
    address = urlsplit(uri)
    port = address.port or _DATABASE_PORTS.get(address.scheme.partition("+")[0])
    if address.hostname and port:
        socket.create_connection((address.hostname, port), _CONNECT_SECONDS).close()
    if address.scheme not in ("http", "https"):
        return
    answer = httpx.get(
        f"{uri.rstrip('/')}{_SEARCH_PATH}", timeout=_CONNECT_SECONDS, follow_redirects=True
    )
    if answer.is_server_error or answer.status_code in _PROXY_STATUS_CODES:
        return  # the message of MLflow's client is better
    with contextlib.suppress(ValueError):
        if answer.is_success and isinstance(answer.json(), dict):
            return
    raise NotMLflowError(
        f"MLflow {hide_secrets(uri, uri=uri)}: another service answers there ({_SEARCH_PATH}: "
        f"{answer.status_code} {answer.reason_phrase}); give the address of an MLflow server with "
        f"--tracking-uri or {TRACKING_URI_VARIABLE}"
    )
