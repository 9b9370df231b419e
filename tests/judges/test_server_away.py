"""With --wait-for-server a judge waits for a server that is away, and for nothing else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import openai._base_client
import pytest

from encore.core.errors import EncoreError, JudgeUnavailableError
from encore.judges import http_judge, http_server, http_servers
from encore.judges.base import SERVER_ERROR, ProgressHook, Reply
from encore.judges.http_judge import HttpJudge
from tests.judges.hostile_server import KEY, HostileServer, serving
from tests.judges.test_http_judge import EXPECTED_TEXTS, QUESTIONS, TEXT, opened

pytestmark = pytest.mark.services

AWAY_SECONDS = 1.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(http_server, "MAX_RETRIES", 1)
    monkeypatch.setattr(http_servers, "_MIN_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)


@contextmanager
def closing(judge: HttpJudge) -> Iterator[HttpJudge]:
    try:
        yield judge
    finally:
        judge.close()


def ask(judge: HttpJudge, *, on_progress: ProgressHook = lambda _: None) -> list[Reply]:
    return judge.reply(QUESTIONS, decoding=TEXT, on_progress=on_progress, num_answered=0)


def test_a_gateway_without_its_server_is_waited_for(caplog):
    server = HostileServer(fault="503", after=20)
    with serving(server), closing(opened(server, wait_for_server=1)) as judge:

        def mend(_num_done: int) -> None:
            if judge.wait_seconds > 0:
                server.fault = ""

        assert [reply.text for reply in ask(judge, on_progress=mend)] == EXPECTED_TEXTS
        assert judge.wait_seconds > 0
    [message] = [text for text in caplog.messages if "waiting for the server" in text]
    assert "answered 503" in message  # once, not once a request


def test_a_server_that_takes_no_connection_is_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    state = HostileServer(base_url=f"http://127.0.0.1:{port}/v1")
    with closing(opened(state, wait_for_server=1)) as judge:
        texts: list[str] = []
        asking = threading.Thread(target=lambda: texts.extend(reply.text for reply in ask(judge)))
        asking.start()
        time.sleep(AWAY_SECONDS)
        assert asking.is_alive()
        with serving(state, port=port):
            asking.join()
    assert texts == EXPECTED_TEXTS


def test_an_error_of_a_server_that_is_away_names_the_option():
    advice = "; --wait-for-server MINUTES waits for a server to return"
    nowhere = HostileServer(base_url="http://127.0.0.1:9/v1")
    with (
        closing(opened(nowhere)) as judge,
        pytest.raises(JudgeUnavailableError, match=f"takes no connection .*{advice}"),
    ):
        judge.start()
    server = HostileServer(fault="503")
    with (
        serving(server),
        closing(opened(server)) as judge,
        pytest.raises(EncoreError, match=f"answered 503 .*{advice}"),
    ):
        ask(judge)


def test_a_wait_that_is_too_long_ends_the_run():
    server = HostileServer(fault="503")
    with (
        serving(server),
        closing(opened(server, wait_for_server=0.01)) as judge,  # 0.6 s
        pytest.raises(JudgeUnavailableError, match=r"answered 503.*waited 0.01 minutes"),
    ):
        ask(judge)


def test_a_prompt_for_which_a_gateway_fails_is_set_aside_without_a_wait():
    server = HostileServer(fault="503", every=5, spared=http_judge._PROBE)
    with serving(server), closing(opened(server, wait_for_server=1)) as judge:
        replies = ask(judge)
        assert judge.wait_seconds == 0
    failed = [server.is_hit(question) for question in QUESTIONS]
    assert [reply.null_reason == SERVER_ERROR for reply in replies] == failed
    # Each of them is sent in two requests, of two attempts each.
    assert [server.num_asked[question] == 4 for question in QUESTIONS] == failed


def test_a_wait_can_be_interrupted():
    server = HostileServer(fault="503")

    def interrupt(_num_done: int) -> None:
        if judge.wait_seconds > 0.1:
            raise KeyboardInterrupt

    with serving(server), closing(opened(server, wait_for_server=60)) as judge:
        with pytest.raises(KeyboardInterrupt):
            ask(judge, on_progress=interrupt)
        server.fault = ""
        assert [reply.text for reply in ask(judge)] == EXPECTED_TEXTS
