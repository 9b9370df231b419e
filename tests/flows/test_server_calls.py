"""Calls of the Prefect server while it is away: none raises or hangs, what waits is made later."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks import server_calls
from tasks.artifacts import artifact_key
from tasks.server_calls import begin_flow_run, best_effort, server_answers, wait_for_server
from tests.worlds.servers import PrefectServer, free_port, running_server, wait_until

pytestmark = pytest.mark.services

PAUSE_SECONDS = 0.5


@pytest.fixture(autouse=True)
def _fresh_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(server_calls, "_server", server_calls._ServerState())
    monkeypatch.setattr(server_calls, "_MIN_PAUSE_SECONDS", PAUSE_SECONDS)
    yield
    begin_flow_run()


def ask() -> str:
    with get_client(sync_client=True) as client:
        return client.api_version()


def test_a_call_to_a_server_that_is_away_is_made_when_it_is_back(
    prefect_server: PrefectServer, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []
    away = {PREFECT_API_URL: f"http://127.0.0.1:{free_port()}/api"}
    with temporary_settings(updates=away):
        assert not server_answers()
        for name in ("first", "second"):
            assert best_effort(lambda name=name: calls.append(name), retry_name="table") is None
        assert best_effort(lambda: calls.append("only now")) is None
        assert not wait_for_server(timeout_seconds=0)
    assert not calls
    assert caplog.text.count("Prefect server is away") == 1

    with temporary_settings(updates={PREFECT_API_URL: f"{prefect_server.url}/api"}):
        assert wait_for_server()
        assert calls == ["second"]  # of one name, the newest
        assert best_effort(ask) == "3.7.7"


def test_a_server_that_hangs_costs_seconds_and_then_none_until_the_pause_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    asked_at: list[float] = []

    def counted_server_answers() -> bool:
        asked_at.append(now)
        return server_answers()

    monkeypatch.setattr(server_calls, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(server_calls, "server_answers", counted_server_answers)
    monkeypatch.setattr(server_calls, "_ANSWER_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        url = f"http://127.0.0.1:{hanging.getsockname()[1]}/api"
        with temporary_settings(updates={PREFECT_API_URL: url}):
            began = time.monotonic()
            assert best_effort(ask) is None
            # The limit is 1 s; Prefect's own client would wait for minutes.
            assert 0.9 < time.monotonic() - began < 50
            assert best_effort(ask) is None
            assert asked_at == [0.0]  # the second call did not try the server
            now = PAUSE_SECONDS
            assert best_effort(ask) is None
            assert asked_at == [0.0, PAUSE_SECONDS]


def test_a_call_that_the_server_refuses_is_logged_and_not_repeated(
    prefect_server: PrefectServer, caplog: pytest.LogCaptureFixture
) -> None:
    def ask_nowhere() -> None:
        with get_client(sync_client=True) as client:
            client.request("GET", "/nowhere")

    with temporary_settings(updates={PREFECT_API_URL: f"{prefect_server.url}/api"}):
        assert best_effort(ask_nowhere, retry_name="x") is None
        assert "refused a call" in caplog.text
        caplog.clear()
        assert wait_for_server()
    assert "refused" not in caplog.text


SLOW_FLOW = """
import sys, time
from pathlib import Path
from prefect.states import Completed
from flows.study_flow import study_flow
from tasks.artifacts import publish_text
from tasks.flow_reporter import FlowReporter
from tasks.stage_task import run_stage

study, end = map(Path, sys.argv[1:])

def work():
    reporter = FlowReporter("slow", study)
    reporter.started("waiting", total=10_000)
    longest = 0.0
    while not end.exists():
        began = time.monotonic()
        reporter.advanced(note="so far")
        longest = max(longest, time.monotonic() - began)
        time.sleep(0.2)
    reporter.finished("waited")
    return longest

@study_flow("slow", stage="wait")
def slow(study: Path):
    longest = run_stage("wait", work)
    publish_text("longest", f"{longest:.1f}", "", study)
    run_stage("after", lambda: None)
    return Completed(message="waited")

slow(study)
"""


@pytest.mark.parametrize(
    ("away_seconds", "client_retries"),
    [  # Two retries take 6 s, five 62 s: no call of Prefect's own client outlasts the outage.
        pytest.param(24, 2, id="short outage"),
        pytest.param(100, 5, marks=pytest.mark.full, id="long outage"),
    ],
)
def test_a_run_waits_for_a_server_that_is_away_and_loses_nothing(
    tmp_path: Path, away_seconds: float, client_retries: int
) -> None:
    """It is restarted at once, then away; the stage and the flow end meanwhile."""
    study, end, port = tmp_path / "study", tmp_path / "end", free_port()
    (tmp_path / "slow_flow.py").write_text(SLOW_FLOW)
    with running_server(tmp_path / "server", port=port) as first:
        retries = {"PREFECT_CLIENT_MAX_RETRIES": str(client_retries)}
        environ = {**os.environ, **first.environ, **retries}
        command = [sys.executable, str(tmp_path / "slow_flow.py"), str(study), str(end)]
        with (tmp_path / "log").open("wb") as log:
            run = subprocess.Popen(command, env=environ, stderr=log)
        [progress, *_] = wait_until(lambda: first.post("artifacts/filter", {}), seconds=120)
    run_id = progress["flow_run_id"]
    time.sleep(2)
    with running_server(tmp_path / "server", port=port):
        time.sleep(12)  # progress is published every 10 s
    time.sleep(away_seconds * 0.6)
    end.touch()
    time.sleep(away_seconds * 0.4)
    assert run.poll() is None  # the work is done, and the run waits for its server
    with running_server(tmp_path / "server", port=port) as last:
        assert run.wait(timeout=60) == 0, (tmp_path / "log").read_text()
        flow_run = last.wait_for(run_id)
        assert (flow_run["state_type"], flow_run["state"]["message"]) == ("COMPLETED", "waited")
        assert flow_run["name"] == "study: wait"
        artifacts = last.artifacts(run_id)
        tasks = last.post("task_runs/filter", {"flow_runs": {"id": {"any_": [run_id]}}})
    states = {task["name"].partition("-")[0]: task["state_type"] for task in tasks}
    assert states["wait"] == "COMPLETED"  # it began before the outage and ended in it
    assert set(states.values()) == {"COMPLETED"}
    assert artifacts[artifact_key("slow-progress", study)] == 100.0
    assert float(artifacts[artifact_key("longest", study)]) < 20  # no call held the stage for long
