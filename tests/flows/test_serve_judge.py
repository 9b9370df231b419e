"""The flow `serve-judge`: its address, its log, its key, and when it ends."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.artifacts import Artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter
from prefect.client.schemas.objects import State
from prefect.settings import PREFECT_API_URL

from encore.core.errors import InputError
from encore.judges.judge_options import JudgeConfig
from encore.judges.server_process import get_text
from encore.judges.vllm_engine import VllmJudge
from encore.judges.vllm_servers import LocalServers, served_name
from flows import serve_judge as module
from flows.serve_judge import own_address, serve_judge
from tasks.pool_servers import ADDRESS_KEY, ServeConfig, judge_key
from tests.flows.conftest import error_of
from tests.judges.standin_vllm import Standin
from tests.worlds.servers import wait_until

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("prefect_api")]


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    """Have the flow start stand-ins, and end after two seconds without a request."""
    standin = Standin(tmp_path / "standin")
    monkeypatch.setitem(LocalServers.__init__.__kwdefaults__, "make_command", standin.command)
    monkeypatch.setattr(module, "MIN_KEEP_SECONDS", 2.0)
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.2)
    return standin


def serve(judge: Path, *, keep_minutes: float = 0.0) -> State[Any]:
    config = ServeConfig(judge=JudgeConfig(model=str(judge)), keep_minutes=keep_minutes)
    return serve_judge(config, return_state=True)


def log_of(state: State[Any]) -> str:
    log_filter = LogFilter.model_validate(
        {"flow_run_id": {"any_": [state.state_details.flow_run_id]}}
    )
    with get_client(sync_client=True) as client:
        lines = wait_until(lambda: client.read_logs(log_filter, limit=200), event="the log")
    return "\n".join(line.message for line in lines)


def test_a_server_tells_its_address_and_ends_when_nobody_asks_it(
    tiny_judge: Path, standin: Standin
) -> None:
    standin.order(prints="weights are loaded\n")
    state = serve(tiny_judge)

    assert state.is_completed()
    assert state.message in {f"no run asked it for {seconds} s" for seconds in range(2, 40)}
    artifact = Artifact.get(ADDRESS_KEY)
    assert artifact is not None
    [row] = json.loads(artifact.data)
    name = served_name(VllmJudge(JudgeConfig(model=str(tiny_judge))))
    assert (row["judge"], row["host"]) == (name, socket.gethostname())
    assert row["address"].startswith("http://127.0.0.1:")
    assert "weights are loaded" in log_of(state)
    assert get_text(row["address"], "/health", api_key=None) is None  # it has ended


def test_a_server_on_a_network_wants_the_key_of_the_block_and_shows_it_nowhere(
    tiny_judge: Path, standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(module.HOST_VARIABLE, "127.0.0.2")  # an address of this host, as a network's
    api, answers = str(PREFECT_API_URL.value()), []

    def ask() -> None:
        def row() -> Any:
            newest = httpx.post(f"{api}/artifacts/latest/filter", json={}).json()
            rows = [json.loads(each["data"])[0] for each in newest if each["key"] == ADDRESS_KEY]
            return next((row for row in rows if "127.0.0.2" in row["address"]), None)

        url = wait_until(row, event="the address")["address"]
        answers.append(get_text(url, "/v1/models", api_key=None))
        answers.append(get_text(url, "/v1/models", api_key=key))

    key = judge_key()
    assert judge_key() == key  # every server and run has the same
    asking = threading.Thread(target=ask)
    asking.start()
    state = serve(tiny_judge, keep_minutes=0.1)
    asking.join()
    assert answers[0] is None
    assert "max_model_len" in answers[1]
    artifact = Artifact.get(ADDRESS_KEY)
    assert artifact is not None
    for text in (log_of(state), str(artifact.data), str(state.message)):
        assert key not in text


def test_a_server_that_dies_too_often_is_the_error_of_its_run(
    tiny_judge: Path, standin: Standin
) -> None:
    standin.order(prints="ValueError: no such kernel\n", ends=[1, 2, 3])
    error = error_of(serve(tiny_judge))
    assert "ValueError: no such kernel" in str(error)
    assert "after 3 starts" in str(error)
    assert len(standin.pids) == 3


@pytest.mark.parametrize("name", ["nowhere.invalid", "192.0.2.7", "::1x"])
def test_a_name_of_another_host_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"ENCORE_JUDGE_HOST {name}: .*{socket.gethostname()}"):
        own_address(name)


def test_without_a_name_a_server_listens_on_loopback() -> None:
    assert own_address("") == "127.0.0.1"
