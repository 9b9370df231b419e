"""Fixtures of flow tests: a Prefect server, a tiny judge, a study."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.artifacts import Artifact
from prefect.client.base import PrefectHttpxSyncClient
from prefect.client.schemas.objects import State
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_RESULTS_LOCAL_STORAGE_PATH,
    PREFECT_SERVER_ANALYTICS_ENABLED,
    temporary_settings,
)

from encore.core.errors import EncoreError
from encore.judges.judge_options import JudgeConfig
from encore.rating.rating_options import RatingConfig
from encore.reports import write_report
from infra.prefect_setup import prefect_environment
from tasks import server_calls
from tasks.artifacts import artifact_key
from tests.tasks.tracking.mlflow_store import copy_store
from tests.worlds.servers import PrefectServer, add_database, free_port, running_server
from tests.worlds.studies import numbered_pairs, study_of, write_lines

NUM_PAIRS = 6


@pytest.fixture(autouse=True)
def _close_clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close every synchronous HTTP client that a test's flows made.

    Prefect 3.7 makes clients for single calls and does not close them. Left to the garbage
    collector, their sockets warn in whatever code runs then; where that code changes the warning
    filters, the warning is no error.
    """
    clients: list[PrefectHttpxSyncClient] = []
    init = PrefectHttpxSyncClient.__init__

    def init_and_list(client: PrefectHttpxSyncClient, *args: Any, **options: Any) -> None:
        init(client, *args, **options)
        clients.append(client)

    monkeypatch.setattr(PrefectHttpxSyncClient, "__init__", init_and_list)
    yield
    server_calls._health_client.cache_clear()  # its client is closed below
    for client in clients:
        client.close()
    gc.collect()  # a socket that is still open is an error of this test, not of a later one


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """Start the server of the session as the local stack starts it."""
    with running_server(tmp_path_factory.mktemp("prefect") / "fresh") as server:
        yield server


@pytest.fixture(scope="session")
def prefect_api(
    prefect_server: PrefectServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Let flows of this process use the server and write nothing to the user's home."""
    home = tmp_path_factory.mktemp("client")
    with temporary_settings(
        updates={
            PREFECT_API_URL: f"{prefect_server.url}/api",
            PREFECT_HOME: home,
            PREFECT_RESULTS_LOCAL_STORAGE_PATH: home / "storage",
            PREFECT_SERVER_ANALYTICS_ENABLED: False,
        }
    ):
        yield


def artifact(key: str, study: Path) -> Any:
    """Return the newest artifact of a study under a key."""
    newest = Artifact.get(artifact_key(key, study))
    assert newest is not None, key
    return newest


def error_of(state: State[Any]) -> EncoreError:
    assert state.is_failed()
    error = state.result(raise_on_failure=False)
    assert isinstance(error, EncoreError)
    return error


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have reports written as without Matplotlib: pictures take as long as a small pipeline."""
    monkeypatch.setattr(write_report, "find_spec", lambda _: None)


@pytest.fixture
def store_uri(mlflow_template: Path, tmp_path: Path) -> str:
    """Return the URI of an empty MLflow store that no other test uses."""
    return copy_store(mlflow_template, tmp_path / "store" / "mlflow.db")


@pytest.fixture(scope="session")
def pairs_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    return write_lines(path, numbered_pairs(NUM_PAIRS))


@pytest.fixture(scope="session")
def _ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    return study_of(numbered_pairs(NUM_PAIRS), folder / "study", label="small")


@pytest.fixture
def study(_ingested: Path, tmp_path: Path) -> Path:
    """Return an unrated study of six pairs that no other test uses."""
    return Path(shutil.copytree(_ingested, tmp_path / "study"))


@pytest.fixture
def rating(tiny_judge: Path) -> Callable[..., RatingConfig]:
    """Return a function that makes configs: the tiny judge, three shards of two pairs."""

    def make(backend: str = "transformers", **overrides: object) -> RatingConfig:
        judge = JudgeConfig.model_validate({"model": str(tiny_judge), "backend": backend})
        return RatingConfig.model_validate(
            {"judge": judge, "shard_size": 2, "max_reply_tokens": 8, **overrides}
        )

    return make


@pytest.fixture
def without_server(tmp_path: Path) -> dict[str, str]:
    """Return the environment of flows that start a server of their own."""
    add_database(tmp_path / "prefect-home")
    return prefect_environment(tmp_path / "prefect-home", port=free_port())


@pytest.fixture
def with_server(without_server: dict[str, str], prefect_api: None) -> dict[str, str]:
    return {**without_server, "PREFECT_API_URL": str(PREFECT_API_URL.value())}
