"""An MLflow store in an SQLite file, with its artifacts in the folder beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from encore.core.leftovers import unique_suffix
from tasks.tracking.store_uri import sqlite_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

MAX_EXPERIMENTS = 50_000


def artifacts_folder(store: Path) -> Path:
    """Return the folder of a store's artifacts: beside it, wherever the process runs."""
    return store.parent / f"{store.stem}-artifacts"


def make_store(path: Path) -> None:
    """Make an empty store under a temporary name, then rename it: a store at ``path`` is whole."""
    from mlflow import MlflowClient

    temporary = path.with_name(f".{path.name}.tmp-{unique_suffix()}")
    MlflowClient(sqlite_uri(temporary)).search_experiments()
    temporary.replace(path)


def is_copied(store: Path, client: MlflowClient) -> bool:
    """Return True if a store was copied or moved: its runs name artifacts at another path.

    MLflow records the absolute path of every artifact and has no call that changes one.

    Args:
        store: SQLite file of the store.
        client: Client of the store.
    """
    here = artifacts_folder(store)
    experiments = client.search_experiments(max_results=MAX_EXPERIMENTS)
    locations = {unquote(experiment.artifact_location) for experiment in experiments}
    locations.discard(unquote(here.as_uri()))
    return any(location.endswith(f"/{here.name}") for location in locations)
