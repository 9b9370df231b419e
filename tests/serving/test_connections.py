"""Requests for foreign hosts are refused, and half requests do not hold the server."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from encore.core import head_timeout
from encore.serving.host_guard import host_names
from tests.serving.servers import PATIENCE, Running, running

#: The beginning of a request, without the empty line that ends its head.
HALF_HEAD = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(hosts=["rewards.internal"]) as running_server:
        yield running_server


# --- hosts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1:1", "[::1]:80", "10.1.2.3"),
        *("rewards.internal", "Rewards.Internal:5000"),
    ],
)
def test_the_names_of_the_server_and_addresses_are_answered(server, host):
    answer = httpx.get(f"{server.url}/health", headers={"host": host}, timeout=PATIENCE)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "a@localhost", ""]
)
@pytest.mark.parametrize("path", ["/health", "/model", "/metrics", "/nowhere"])
def test_another_name_is_refused_on_every_path_and_the_answer_names_the_option(server, host, path):
    answer = httpx.get(f"{server.url}{path}", headers={"host": host}, timeout=PATIENCE)
    assert answer.status_code == 403
    assert "--allow-host NAME" in answer.json()["error"]


def test_a_reward_is_not_computed_for_another_name_and_the_refusal_is_counted(server):
    body, headers = {"query": ["Hi."]}, {"host": "evil.example"}
    answer = httpx.post(f"{server.url}/get_reward", json=body, headers=headers, timeout=PATIENCE)
    assert answer.status_code == 403
    refused = [line for line in server.get("/metrics").text.splitlines() if '"403"' in line]
    assert any("encore_requests" in line for line in refused)


def test_a_server_that_others_reach_answers_to_the_name_of_its_machine(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "Node-7")
    assert host_names("127.0.0.1") == {"localhost", "127.0.0.1"}
    assert host_names("localhost", further=["A.b."]) == {"localhost", "a.b"}
    for host in ("0.0.0.0", "::", "10.0.0.7"):  # noqa: S104
        assert host_names(host) == {"localhost", host, "node-7"}


# --- half requests --------------------------------------------------------------------------------


def connect(server: Running, content: bytes = HALF_HEAD) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    connection.sendall(content)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Return True if the server closes the connection within `PATIENCE`; it has sent nothing."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("content", [b"", HALF_HEAD, b"G"])
def test_a_connection_without_a_whole_head_is_closed(server, monkeypatch, content):
    monkeypatch.setattr(head_timeout, "HEAD_SECONDS", 0.2)
    with connect(server, content) as connection:
        assert is_closed(connection)


def test_a_head_that_arrives_byte_by_byte_gets_no_further_time(server, monkeypatch):
    monkeypatch.setattr(head_timeout, "HEAD_SECONDS", 0.3)
    with connect(server, b"") as connection:
        started = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - started < PATIENCE:
                connection.sendall(b"x")
                time.sleep(0.02)
        assert time.monotonic() - started < PATIENCE


def test_the_head_of_a_second_request_has_a_limit_too_and_a_waiting_client_keeps_its_connection(
    server, monkeypatch
):
    monkeypatch.setattr(head_timeout, "HEAD_SECONDS", 0.2)
    with httpx.Client(timeout=PATIENCE) as client:
        first = client.get(f"{server.url}/health")
        time.sleep(0.5)  # longer than a head may take: no head has begun
        second = client.get(f"{server.url}/health")
        streams = [answer.extensions["network_stream"] for answer in (first, second)]
        assert streams[0] is streams[1]
    with connect(server, HALF_HEAD + b"\r\n") as connection:
        answer = b""
        while b"queued_texts" not in answer or not answer.endswith(b"}"):
            answer += connection.recv(4096)
        connection.sendall(HALF_HEAD)
        assert is_closed(connection)


def test_half_requests_leave_room_for_a_whole_one(monkeypatch):
    """Twice as many half heads as the server may have connections, none of them timed out yet."""
    monkeypatch.setattr(head_timeout, "HEAD_SECONDS", PATIENCE)
    with running(max_connections=8) as small_server, contextlib.ExitStack() as stack:
        halves = [stack.enter_context(connect(small_server)) for _ in range(16)]
        assert small_server.get("/health").status_code == 200
        assert is_closed(halves[0])  # one of the oldest made room
        with connect(small_server) as newest:
            newest.sendall(b"\r\n")
            assert newest.recv(12) == b"HTTP/1.1 200"
