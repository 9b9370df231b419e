"""Calls of the Prefect server while it is away: none raises or hangs, what waits is made later."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks import server
from tasks.server import best_effort, forget_waiting_calls, server_answers, wait_for_server
from tests.prefect_server import PrefectServer, free_port


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(server, "_known", server._Known())
    monkeypatch.setattr(server, "_PAUSE_SECONDS", 0.5)
    monkeypatch.setattr(server, "_ANSWER_SECONDS", 1.0)
    yield
    forget_waiting_calls()


def ask() -> str:
    with get_client(sync_client=True) as client:
        return client.api_version()


def test_a_call_to_a_server_that_is_away_is_made_when_it_is_back(
    prefect_server: PrefectServer, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[str] = []
    away = {PREFECT_API_URL: f"http://127.0.0.1:{free_port()}/api"}
    with temporary_settings(updates=away):
        assert not server_answers()
        for word in ("first", "second"):
            assert best_effort(lambda word=word: made.append(word), later="table") is None
        assert best_effort(lambda: made.append("only now")) is None
        assert not wait_for_server(timeout_seconds=0)
    assert not made
    assert caplog.text.count("Prefect server is away") == 1

    with temporary_settings(updates={PREFECT_API_URL: f"{prefect_server.url}/api"}):
        assert wait_for_server()
        assert made == ["second"]  # of one name, the newest
        time.sleep(0.5)
        assert best_effort(ask) == "3.7.7"


def test_a_server_that_hangs_costs_seconds_and_then_none_until_the_pause_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        url = f"http://127.0.0.1:{hangs.getsockname()[1]}/api"
        with temporary_settings(updates={PREFECT_API_URL: url}):
            began = time.monotonic()
            assert best_effort(ask) is None
            assert 0.9 < time.monotonic() - began < 5
            began = time.monotonic()
            assert best_effort(ask) is None
            assert time.monotonic() - began < 0.1


def test_a_call_that_the_server_refuses_is_logged_and_not_repeated(
    prefect_server: PrefectServer, caplog: pytest.LogCaptureFixture
) -> None:
    def ask_nowhere() -> None:
        with get_client(sync_client=True) as client:
            client.request("GET", "/nowhere")

    with temporary_settings(updates={PREFECT_API_URL: f"{prefect_server.url}/api"}):
        assert best_effort(ask_nowhere, later="x") is None
        assert "refused a call" in caplog.text
        caplog.clear()
        assert wait_for_server()
    assert "refused" not in caplog.text
