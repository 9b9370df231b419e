"""Servers on the GPU pool: replaced, given up, refused by name, left to the next run."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Cancelled, Crashed, Failed, Pending, Running, Scheduled

from encore.core.errors import JudgeUnavailableError
from encore.judges.judge_options import JudgeConfig
from tasks import pool_servers
from tasks.pool_servers import PoolServers, ServeConfig

pytestmark = pytest.mark.services


class FakePrefect:
    """Client of a Prefect server whose flow runs a test moves."""

    def __init__(self) -> None:
        self.runs: dict[UUID, FlowRun] = {}
        self.parameters: list[dict[str, Any]] = []
        self.is_away = False
        self.host = socket.gethostname()

    def create(self, **values: Any) -> FlowRun:
        run_id = uuid4()
        number = len(self.runs) + 1
        self.runs[run_id] = FlowRun(
            id=run_id, flow_id=run_id, name=f"run-{number}", state=Scheduled(), **values
        )
        return self.runs[run_id]

    def move(self, state: State[Any]) -> None:
        """Set the state of the newest run."""
        [*_, run] = self.runs.values()
        run.state = state
        run.state_type = state.type

    def read_deployment_by_name(self, _name: str) -> FlowRun:
        return FlowRun(flow_id=uuid4())

    def create_flow_run_from_deployment(self, _id: UUID, **options: Any) -> FlowRun:
        self.parameters.append(options["parameters"])
        return self.create(tags=options["tags"])

    def read_flow_run(self, run_id: UUID) -> FlowRun:
        return self.runs[run_id]

    def read_flow_runs(self, **_filters: Any) -> list[FlowRun]:
        return [run for run in self.runs.values() if not (run.state and run.state.is_final())]

    def set_flow_run_state(self, run_id: UUID, state: State[Any], *, force: bool) -> None:
        assert force
        self.runs[run_id].state = state

    def read_artifacts(self, artifact_filter: Any, **_options: Any) -> list[Any]:
        [run_id] = artifact_filter.flow_run_id.any_
        number = [*self.runs].index(run_id) + 1
        row = {"address": f"http://127.0.0.1:{number}/v1", "host": self.host, "GPUs": "0"}
        return [type("Artifact", (), {"data": json.dumps([row])})]


@pytest.fixture
def prefect(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePrefect]:
    fake = FakePrefect()

    def call(make_call: Any) -> Any:
        return None if fake.is_away else make_call(fake)

    monkeypatch.setattr(pool_servers, "_call", call)
    monkeypatch.setattr(pool_servers, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(pool_servers, "get_text", lambda *_, **__: None)
    monkeypatch.setattr(pool_servers, "served_name", lambda judge: judge)
    return fake


def servers_of(num_servers: int = 1) -> PoolServers:
    config = JudgeConfig(model="my-judge", engine_args={"tensor_parallel_size": 2})
    return PoolServers(config=config, num_servers=num_servers, keep_minutes=3)


def begin(servers: PoolServers, prefect: FakePrefect) -> None:
    """Start servers, of which the newest runs at once."""
    servers.start("my-judge@1")  # type: ignore[arg-type]
    servers.check()
    prefect.move(Running())
    servers.check()


def test_a_server_is_started_with_the_judge_and_asked_where_it_says(prefect: FakePrefect) -> None:
    servers = servers_of()
    begin(servers, prefect)
    assert servers.check() == ["http://127.0.0.1:1/v1"]
    assert servers.api_key is None
    config = ServeConfig.model_validate(prefect.parameters[0]["config"])
    assert (config.judge, config.keep_minutes) == (servers.config, 3)
    servers.close()
    assert prefect.runs[next(iter(prefect.runs))].state_name != "Cancelled"  # the next run asks it
    again = servers_of()
    begin(again, prefect)
    assert again.check() == ["http://127.0.0.1:1/v1"]
    assert len(prefect.runs) == 1


def test_a_server_that_fails_is_started_again_three_times(prefect: FakePrefect) -> None:
    servers = servers_of()
    begin(servers, prefect)
    for number in range(1, 4):
        prefect.move(Crashed(message="exit code -9"))
        assert servers.check() == []
        prefect.move(Running())
        assert servers.check() == [f"http://127.0.0.1:{number + 1}/v1"]
    [row] = servers.rows([{"address": "http://127.0.0.1:4/v1", "state": "up", "prompts": 7}])
    assert (row["restarts"], row["state"], row["prompts"], row["GPUs"]) == (3, "up", 7, "0")
    prefect.move(Failed(message="no such kernel"))
    with pytest.raises(
        JudgeUnavailableError, match=r"run-4 is Failed: no such kernel, after 3 rest"
    ):
        servers.check()
    assert len(prefect.runs) == 4


def test_a_cancelled_server_is_not_started_again(prefect: FakePrefect) -> None:
    servers = servers_of()
    begin(servers, prefect)
    prefect.move(Cancelled(message="by hand"))
    with pytest.raises(JudgeUnavailableError, match=r"server 1 of 1 .* was cancelled .*by hand"):
        servers.check()
    assert len(prefect.runs) == 1


def test_a_server_on_the_loopback_of_another_host_is_named(prefect: FakePrefect) -> None:
    prefect.host = "gpu-7"
    with pytest.raises(JudgeUnavailableError, match=r"loopback of gpu-7.*ENCORE_JUDGE_HOST"):
        begin(servers_of(), prefect)


def test_while_the_prefect_server_is_away_the_servers_are_asked_as_before(
    prefect: FakePrefect,
) -> None:
    servers = servers_of()
    begin(servers, prefect)
    prefect.is_away = True
    prefect.move(Crashed())
    assert servers.check() == ["http://127.0.0.1:1/v1"]
    prefect.is_away = False
    assert servers.check() == []


def test_a_run_whose_worker_is_lost_before_it_begins_is_replaced(
    prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = servers_of(2)
    begin(servers, prefect)
    monkeypatch.setattr(pool_servers, "_PENDING_SECONDS", -1.0)
    [lost, _] = prefect.runs.values()
    lost.state = Pending()
    servers.check()
    assert lost.state is not None
    assert lost.state.name == "Crashed"
    servers.check()
    assert len(prefect.runs) == 3
    servers.close()  # nobody waits for the third
    assert [run.state.name for run in prefect.runs.values() if run.state][-1] == "Cancelled"
