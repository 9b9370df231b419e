"""Choose the MLflow store of a study, and print its URI without passwords."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from encore.core.errors import InputError

TRACKING_URI_VARIABLE = "MLFLOW_TRACKING_URI"
#: The file name of the store that stands in a study.
STUDY_STORE = "mlflow.db"
_SQLITE_PREFIX = "sqlite:///"
_SECRET_NAME = re.compile(r"pass|pwd|secret|token|key|credential", re.IGNORECASE)


def choose_tracking_uri(study: Path, *, given_uri: str | None = None) -> str:
    """Return the given URI, else the value of MLFLOW_TRACKING_URI, else a file in the study.

    SQLite paths become absolute: MLflow would look for them in the working directory.

    Raises:
        InputError: The given URI has a password, which belongs in the environment alone.
    """
    study_uri = sqlite_uri(study.resolve() / STUDY_STORE)
    uri = refuse_secret(given_uri or "") or os.environ.get(TRACKING_URI_VARIABLE) or study_uri
    path = sqlite_path(uri)
    return uri if path is None else sqlite_uri(path)


def sqlite_uri(path: Path) -> str:
    """Return the URI of an SQLite store."""
    return f"{_SQLITE_PREFIX}{path.as_posix()}"


def sqlite_path(uri: str) -> Path | None:
    """Return the absolute path of an SQLite store's file; None for any other store."""
    name = uri.removeprefix(_SQLITE_PREFIX)
    return None if name == uri or not name else Path(name).resolve()


def refuse_secret(uri: str) -> str:
    """Return the URI if it has no password. Prefect stores and shows what a flow run is given.

    Raises:
        InputError: The URI has a password. The message does not repeat it.
    """
    if _secrets_in(uri):
        raise InputError(
            f"tracking URI {hide_secrets(uri, uri=uri)}: has a password; set "
            f"{TRACKING_URI_VARIABLE} in the environment instead, and change the password if it "
            "was stored"
        )
    return uri


def hide_secrets(text: str, *, uri: str) -> str:
    """Replace the URI's passwords and tokens in a text, as written and decoded, by ``***``."""
    for secret in _secrets_in(uri):
        text = text.replace(secret, "***")
    return text


def _secrets_in(uri: str) -> list[str]:
    """Return the secrets as written and decoded, the longest first: no part of one is left over."""
    parts = urlsplit(uri)
    parameters = [pair.partition("=")[::2] for pair in parts.query.split("&")]
    secrets = [value for name, value in parameters if _SECRET_NAME.search(name)]
    # A user without a password is a token, as hosted services give them.
    secrets.append(parts.password if parts.password is not None else parts.username or "")
    both_spellings = {*secrets, *map(unquote, secrets)}
    return sorted(filter(None, both_spellings), key=len, reverse=True)
