"""Which MLflow store a study is shown in, without showing its passwords."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from encore.errors import InputError

VARIABLE = "MLFLOW_TRACKING_URI"
_SQLITE = "sqlite:///"
_SECRET_NAME = re.compile(r"pass|pwd|secret|token|key|credential", re.IGNORECASE)


def choose_tracking_uri(study: Path, *, given: str | None = None) -> str:
    """The store that was given, else MLFLOW_TRACKING_URI's, else a file in the study.

    SQLite paths become absolute: MLflow would look for them in the working directory.

    Raises:
        InputError: The given one has a password, which belongs into the environment alone.
    """
    if given is not None:
        refuse_secret(given)
    uri = given or os.environ.get(VARIABLE) or f"{_SQLITE}{study.resolve() / 'mlflow.db'}"
    path = sqlite_path(uri)
    return uri if path is None else f"{_SQLITE}{path.as_posix()}"


def sqlite_path(uri: str) -> Path | None:
    """The absolute path of an SQLite store's file; None for any other store."""
    name = uri.removeprefix(_SQLITE)
    return None if name == uri or not name else Path(name).resolve()


def refuse_secret(uri: str) -> None:
    """Refuse a password in what Prefect stores and shows: the parameters of a flow run.

    Raises:
        InputError: There is one; it is not repeated.
    """
    if _secrets(uri):
        raise InputError(
            f"tracking URI {hide_secrets(uri, uri=uri)}: has a password; set {VARIABLE} in the "
            "environment instead, and change the password if it was stored"
        )


def hide_secrets(text: str, *, uri: str) -> str:
    """The text with the URI's passwords and tokens, as written and decoded, replaced by ***."""
    for secret in _secrets(uri):
        text = text.replace(secret, "***")
    return text


def page_of(uri: str, *, experiment_id: str, run_id: str) -> str | None:
    """The address of a run's page; None where the store is no server."""
    if not uri.startswith(("http://", "https://")):
        return None
    scheme, _, rest = uri.partition("://")
    host = rest.partition("?")[0].rpartition("@")[2].rstrip("/")
    return f"{scheme}://{host}/#/experiments/{experiment_id}/runs/{run_id}"


def _secrets(uri: str) -> list[str]:
    """The longest first, so that no part of one is left when another is its beginning."""
    rest = uri.partition("://")[2]
    before_query, _, query = rest.partition("?")
    written = [part.partition("=")[::2] for part in query.split("&")]
    found = [value for name, value in (*parse_qsl(query), *written) if _SECRET_NAME.search(name)]
    if not before_query.startswith("/"):  # else it is a path: there is no user
        user, at, _ = before_query.rpartition("@")
        # A user without a password is a token, as hosted services give them.
        secret = user.partition(":")[2] if ":" in user else user
        found += [secret, unquote(secret)] if at else []
    return sorted({secret for secret in found if secret}, key=len, reverse=True)
