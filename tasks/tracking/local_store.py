"""An MLflow store in an SQLite file, with its artifacts in the folder beside it.

MLflow records the absolute path of every artifact and has no call that changes one. So a file
beside the store records the path that it was made for: a store that is found at another path was
copied or moved, and its runs name artifacts of the original.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from encore.core.leftovers import unique_suffix
from tasks.tracking.store_uri import sqlite_uri

if TYPE_CHECKING:
    from mlflow.store.entities import PagedList

#: Prefix of temporary folders beside a store.
WORK_PREFIX = ".mlflow-work-"


def artifacts_folder(store: Path) -> Path:
    """Return the folder of a store's artifacts: beside it, wherever the process runs."""
    return store.parent / f"{store.stem}-artifacts"


def make_store(path: Path) -> None:
    """Make an empty store under a temporary name, then rename it: a store at ``path`` is whole."""
    from mlflow import MlflowClient

    temporary = path.with_name(f".{path.name}.tmp-{unique_suffix()}")
    MlflowClient(sqlite_uri(temporary)).search_experiments()
    record_path(path)
    temporary.replace(path)


def record_path(store: Path) -> None:
    """Record that a store was made for the path at which it is."""
    _record_of(store).write_text(str(store), encoding="utf-8")


def is_copied(store: Path) -> bool:
    """Return True if a store was made for another path.

    A store without a record (one of an earlier version, or of another program) is looked into once.
    """
    if not store.exists():
        return False
    record = _record_of(store)
    if record.is_file():
        return record.read_text(encoding="utf-8") != str(store)
    if _names_other_folder(store):
        return True
    record_path(store)
    return False


def all_pages(
    search: Callable[..., PagedList[Any]], *arguments: Any, **options: Any
) -> Iterator[Any]:
    """Yield every result of one of MLflow's searches, page after page."""
    token: str | None = ""
    while token is not None:
        page = search(*arguments, **options, page_token=token or None)
        yield from page
        token = page.token or None


def _record_of(store: Path) -> Path:
    return store.with_name(f".{store.name}.made-for")


def _names_other_folder(store: Path) -> bool:
    """Return True if an experiment's artifacts are in a folder of our name at another path.

    A copy of the store is opened: MLflow keeps the connection to a file that it has opened, also
    after another file has taken its path.
    """
    from mlflow import MlflowClient
    from mlflow.entities import ViewType

    folder = artifacts_folder(store)
    with TemporaryDirectory(prefix=WORK_PREFIX, dir=store.parent) as work:
        client = MlflowClient(sqlite_uri(Path(shutil.copy(store, work))))
        experiments = all_pages(client.search_experiments, view_type=ViewType.ALL)
        locations = {unquote(experiment.artifact_location) for experiment in experiments}
    location_here = unquote(folder.as_uri())
    return any(
        location != location_here and location.endswith(f"/{folder.name}") for location in locations
    )
