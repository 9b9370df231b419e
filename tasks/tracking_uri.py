"""Where MLflow's tracking store is, and how its address is shown: never with a password."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from encore.errors import InputError

VARIABLE = "MLFLOW_TRACKING_URI"
_SQLITE = "sqlite:///"
_HIDDEN = "***"
_SECRET_NAME = re.compile(r"pass|pwd|secret|token|key|credential", re.IGNORECASE)


def choose_tracking_uri(
    study: Path, *, given: str | None = None, environ: Mapping[str, str] = os.environ
) -> str:
    """The store to log to: the one that was named, else MLFLOW_TRACKING_URI's, else the study's.

    The study's own is an SQLite file in its directory. A relative SQLite path is made absolute, for
    MLflow would look for it in whatever directory a process happens to run in.
    """
    uri = given or environ.get(VARIABLE) or f"{_SQLITE}{(study.resolve() / 'mlflow.db').as_posix()}"
    path = sqlite_path(uri)
    return uri if path is None else f"{_SQLITE}{path.as_posix()}"


def sqlite_path(uri: str) -> Path | None:
    """The absolute path of an SQLite store's file; None for any other store."""
    name = uri.removeprefix(_SQLITE)
    return None if name == uri or not name else Path(name).resolve()


def shown(uri: str) -> str:
    """The URI for people, logs and databases: passwords and tokens in it are replaced by ***."""
    return hide_secrets(uri, uri=uri)


def has_secret(uri: str) -> bool:
    """Whether a password or a token stands in the URI."""
    return bool(_secrets(uri))


def refuse_secret(uri: str | None) -> None:
    """Parameters of a flow run are stored and shown by Prefect: no password may be in them.

    Raises:
        InputError: One is; said without repeating it.
    """
    if uri is not None and has_secret(uri):
        raise InputError(
            f"tracking_uri {shown(uri)}: has a password, and Prefect stores and shows parameters; "
            f"set {VARIABLE} in the environment of the worker instead, and change the password"
        )


def hide_secrets(text: str, *, uri: str) -> str:
    """The text without the URI's passwords and tokens, as written there and decoded."""
    for secret in _secrets(uri):
        text = text.replace(secret, _HIDDEN)
    return text


def run_page(uri: str, *, experiment_id: str, run_id: str) -> str | None:
    """The address of a run's page; None where the store is no server with pages."""
    if not uri.startswith(("http://", "https://")):
        return None
    scheme, _, rest = uri.partition("://")
    host = rest.partition("?")[0].rpartition("@")[2].rstrip("/")
    return f"{scheme}://{host}/#/{_page(experiment_id, run_id)}"


def how_to_look(uri: str, *, experiment_id: str, run_id: str) -> tuple[str, str]:
    """A command that serves a store's pages on loopback, and the run's page then."""
    command = f"mlflow ui --backend-store-uri '{shown(uri)}' --host 127.0.0.1 --port 5000"
    return command, f"http://127.0.0.1:5000/#/{_page(experiment_id, run_id)}"


def _page(experiment_id: str, run_id: str) -> str:
    return f"experiments/{experiment_id}/runs/{run_id}"


def _secrets(uri: str) -> list[str]:
    """The longest first, so that no part of one is left when another is its beginning."""
    _, _, rest = uri.partition("://")
    before_query, _, query = rest.partition("?")
    found = [value for name, value in parse_qsl(query) if _SECRET_NAME.search(name)]
    found += [value for name, value in _as_written(query) if _SECRET_NAME.search(name)]
    if not before_query.startswith("/"):  # else it is a path: there is no user
        user, at, _ = before_query.rpartition("@")
        # A user without a password is a token, as hosted services give them.
        secret = user.partition(":")[2] if ":" in user else user
        found += [secret, unquote(secret)] if at and secret else []
    return sorted(set(found), key=len, reverse=True)


def _as_written(query: str) -> list[tuple[str, str]]:
    pairs = (part.partition("=") for part in query.split("&"))
    return [(name, value) for name, _, value in pairs if value]
