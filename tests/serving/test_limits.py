"""Too large, too slow, too many, gone, stopped: each hears why, and the server goes on."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import numpy as np
import pytest
import torch

from encore.demo import judge_path
from encore.errors import InputError
from encore.model.config import BackboneConfig
from encore.model.conversation import ConversationTokenizer
from encore.model.loading import load_tokenizer
from encore.model.scoring import score_sequences
from encore.records import Message
from encore.serving import server as server_module
from tests.serving.models import MAX_LENGTH, PATIENCE, Running, opened_model, running

HEAD = "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def hasty() -> Iterator[Running]:
    """A server that waits 0.4 s for anything."""
    limits = {"head_seconds": 0.4, "body_seconds": 0.4, "answer_seconds": 0.4}
    with running(max_request_bytes=100_000, **limits) as found:
        yield found


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)


def read_all(connection: socket.socket) -> str:
    """Everything until the server closes."""
    parts = []
    while part := connection.recv(65_536):
        parts.append(part)
    return b"".join(parts).decode()


def still_answers(server: Running) -> None:
    assert server.post("/get_reward", {"query": ["Hi."]}).status_code == 200


@pytest.mark.parametrize("length", ["content-length", "chunked"])
def test_a_body_that_is_too_large_is_refused_and_its_sender_hears_it(hasty, length):
    body = json.dumps({"query": ["y" * 3_000_000]}).encode()
    content = body if length == "content-length" else iter([body[:70_000], body[70_000:]])
    answer = httpx.post(
        f"{hasty.url}/get_reward",
        content=content,
        headers={"content-type": "application/json"},
        timeout=PATIENCE,
    )
    assert answer.status_code == 413
    assert "expected at most 100000" in answer.json()["error"]
    still_answers(hasty)


def test_who_asks_before_sending_is_refused_before_sending(hasty):
    with connect(hasty) as connection:
        head = HEAD.format(path="/score") + "expect: 100-continue\r\ncontent-length: 900000\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(65_536).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "POST /score HTT",
        "POST /score HTTP/1.1\r\nhost: x\r\nx-slow: ",
    ],
)
def test_a_client_that_hangs_before_its_request_is_told_and_let_go(hasty, sent):
    with connect(hasty) as connection:
        connection.sendall(sent.encode())
        answer = read_all(connection)
    assert answer.startswith("HTTP/1.1 408 Request Timeout")
    assert "no request arrived within 0.4 s" in answer
    still_answers(hasty)


def test_a_client_that_hangs_within_its_body_is_told_and_let_go(hasty):
    with connect(hasty) as connection:
        connection.sendall(
            (HEAD.format(path="/score") + 'content-length: 50\r\n\r\n{"con').encode()
        )
        answer = read_all(connection)
    assert answer.startswith("HTTP/1.1 408")
    assert "did not arrive within 0.4 s (5 bytes did)" in answer


def test_a_client_that_drips_is_let_go_too(hasty):
    """Every byte on its own would restart a deadline that looks at silence alone."""
    with connect(hasty) as connection:
        started = time.monotonic()
        with pytest.raises(OSError, match=r"."):
            for byte in b"GET /health HTTP/1.1\r\n" + b"x-a: b\r\n" * 200:
                connection.sendall(bytes([byte]))
                time.sleep(0.02)
        assert time.monotonic() - started < 5
    still_answers(hasty)


def test_a_connection_that_hangs_in_its_second_request_is_let_go(hasty):
    with connect(hasty) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"P")
        assert "HTTP/1.1 408" in read_all(connection)


def test_the_rest_of_a_refused_body_cannot_be_dripped_for_ever(hasty):
    with connect(hasty) as connection:
        connection.sendall(
            (HEAD.format(path="/nowhere") + "content-length: 1000\r\n\r\n{").encode()
        )
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert (answer.status, set(json.loads(answer.read()))) == (404, {"error"})
        started = time.monotonic()
        connection.sendall(b"x")
        assert read_all(connection) == ""
        assert time.monotonic() - started < 5


def test_a_client_that_never_reads_is_cut_off():
    body = json.dumps({"query": ["a"] * 1000})  # an answer of 100 kB
    ask = (
        HEAD.format(path="/get_reward") + f"content-length: {len(body)}\r\n\r\n{body}"
    ).encode() * 100
    with running(send_bytes=4_096, answer_seconds=0.4) as server:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.settimeout(0.1)
            connection.connect(("127.0.0.1", server.port))
            give_up = time.monotonic() + 8
            with pytest.raises(ConnectionError):
                while time.monotonic() < give_up:
                    with contextlib.suppress(TimeoutError):
                        connection.sendall(ask)
                    ask = b" "
                    time.sleep(0.05)
        still_answers(server)


def test_a_client_that_reads_late_but_in_time_is_not_cut_off():
    body = json.dumps({"query": ["a"] * 500})
    head = HEAD.format(path="/get_reward") + f"content-length: {len(body)}\r\n\r\n"
    with running(send_bytes=4_096, answer_seconds=1.5) as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(PATIENCE)
        connection.connect(("127.0.0.1", server.port))
        for _ in range(3):  # together longer than one answer may take
            connection.sendall((head + body).encode())
            time.sleep(0.7)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            assert len(json.loads(answer.read())["rewards"]) == 500


def test_what_is_no_request_is_counted_and_logged(hasty, caplog):
    def count(status: int) -> float:
        name = f'encore_requests_total{{path="none",status="{status}"}}'
        return hasty.metric(name) if name in hasty.get("/metrics").text else 0.0

    before = count(400), count(408)
    with caplog.at_level(logging.INFO, logger="encore.serving"):
        for sent in (b"secret \x00\r\n\r\n", b"GET /secret"):
            with connect(hasty) as connection:
                connection.sendall(sent)
                read_all(connection)
    assert (count(400), count(408)) == (before[0] + 1, before[1] + 1)
    assert "no request: 400, Invalid HTTP request received." in caplog.text
    assert "no request: 408, no request arrived within 0.4 s" in caplog.text
    assert "secret" not in caplog.text


def test_what_is_not_http_hears_so_in_json(hasty):
    with connect(hasty) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00 hello \x00\r\n\r\n")
        answer = read_all(connection)
    assert answer.startswith("HTTP/1.1 400 Bad Request")
    assert json.loads(answer.partition("\r\n\r\n")[2]) == {
        "error": "Invalid HTTP request received."
    }


def test_bodies_of_all_clients_together_are_bounded():
    with running(max_request_bytes=1_000) as server, contextlib.ExitStack() as stack:
        # 16 bodies of the largest size may be held; these lack their last byte.
        for _ in range(16):
            connection = stack.enter_context(connect(server))
            head = HEAD.format(path="/score") + "content-length: 1000\r\n\r\n"
            connection.sendall(head.encode() + b" " * 999)

        def one_more() -> httpx.Response:
            return server.post("/get_reward", {"query": ["y" * 900]})

        wait_for(lambda: one_more().status_code == 503)
        answer = one_more()
        assert "too many requests are being read" in answer.json()["error"]
        assert answer.headers["retry-after"] == "1"
        stack.close()
        wait_for(lambda: one_more().status_code == 200)


class Held:
    """Scoring that waits until it may go on."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()
        self.num_texts = 0

    def __call__(self, model, sequences, **named):
        self.has_begun.set()
        assert self.may_go_on.wait(PATIENCE)
        self.num_texts += len(sequences)
        return score_sequences(model, sequences, **named)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    found = Held()
    monkeypatch.setattr(server_module, "score_sequences", found)
    yield found
    found.may_go_on.set()


def in_background(server: Running, query: str) -> tuple[threading.Thread, list[httpx.Response]]:
    answers: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(server.post("/get_reward", {"query": [query]}))
    )
    thread.start()
    return thread, answers


def wait_for(claim) -> None:
    give_up = time.monotonic() + PATIENCE
    while not claim():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_a_full_queue_sends_clients_away_for_a_while(held):
    with running(max_batch_tokens=8, max_queue_tokens=10) as server:
        first = in_background(server, "Hi.")
        assert held.has_begun.wait(PATIENCE)
        second = in_background(server, "a longer text than ten tokens " * 3)
        wait_for(lambda: server.metric("encore_queued_texts") == 1)
        answer = server.post("/get_reward", {"query": ["Hi."]})
        assert answer.status_code == 503
        assert "tokens wait to be scored" in answer.json()["error"]
        assert int(answer.headers["retry-after"]) >= 1
        held.may_go_on.set()
        for thread, answers in (first, second):
            thread.join(PATIENCE)
            assert answers[0].status_code == 200
        still_answers(server)


def test_what_a_client_that_went_away_asked_for_is_not_computed(held):
    with running(max_batch_tokens=8) as server:
        first, _ = in_background(server, "Hi.")
        assert held.has_begun.wait(PATIENCE)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/get_reward", json={"query": ["gone " * 9] * 7}, timeout=0.3)
        name = 'encore_requests_total{path="/get_reward",status="499"}'
        wait_for(lambda: name in server.get("/metrics").text)
        held.may_go_on.set()
        first.join(PATIENCE)
        still_answers(server)
    assert held.num_texts == 2  # the first one, and that of `still_answers`


def test_stopping_answers_what_is_under_way(held):
    with running() as server:
        thread, answers = in_background(server, "Hi.")
        assert held.has_begun.wait(PATIENCE)
        threading.Timer(0.3, held.may_go_on.set).start()
    thread.join(PATIENCE)
    assert [answer.status_code for answer in answers] == [200]
    with pytest.raises(httpx.TransportError):
        server.get("/health")


def test_stopping_waits_for_no_client_longer_than_it_says(held):
    with running(stop_seconds=1) as server:
        thread, answers = in_background(server, "Hi.")
        assert held.has_begun.wait(PATIENCE)
        threading.Timer(3.0, held.may_go_on.set).start()
    thread.join(PATIENCE)
    assert [answer.status_code for answer in answers] == [503]
    assert "the server stops" in answers[0].json()["error"]


@pytest.mark.parametrize("chunk", [b'{"query"', b""])
def test_stopping_within_a_body_is_said_in_json(chunk):
    with running(stop_seconds=1, body_seconds=PATIENCE) as server:
        connection = connect(server)
        head = HEAD.format(path="/get_reward") + "content-length: 20\r\n\r\n"
        connection.sendall(head.encode() + chunk)
        still_answers(server)  # by now it waits for the rest
    with connection:
        answer = read_all(connection)
    assert answer.startswith("HTTP/1.1 503")
    assert json.loads(answer.partition("\r\n\r\n")[2]) == {
        "error": "the server stops; send it to another one"
    }


def test_a_failing_model_is_a_500_for_its_clients_and_the_server_goes_on(monkeypatch, caplog):
    def fails(_model, sequences, **_named):
        if len(sequences[0]) > 20:
            raise RuntimeError("CUDA out of memory")
        return np.zeros((len(sequences), 3), dtype=np.float32)

    monkeypatch.setattr(server_module, "score_sequences", fails)
    with running() as server:
        answer = server.post("/get_reward", {"query": ["a secret of the client " * 20]})
        assert answer.status_code == 500
        assert answer.json() == {"error": "the model failed on this batch; see the server's log"}
        still_answers(server)
    assert "CUDA out of memory" in caplog.text
    assert "secret" not in caplog.text


def test_a_server_whose_device_is_lost_says_so(monkeypatch):
    def fails(*_, **__):
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(server_module, "score_sequences", fails)
    with running() as server:
        assert server.get("/health").status_code == 200
        assert server.post("/get_reward", {"query": ["Hi."]}).status_code == 500
        assert server.get("/health").status_code == 503
        assert server.post("/get_reward", {"query": ["Hi."]}).status_code == 503


def test_a_server_whose_batches_all_fail_says_so(monkeypatch):
    def fails(*_, **__):
        raise TypeError("a mistake of ours")

    monkeypatch.setattr(server_module, "score_sequences", fails)
    with running() as server:
        for _ in range(3):
            assert server.get("/health").status_code == 200
            assert server.post("/get_reward", {"query": ["Hi."]}).status_code == 500
        assert server.get("/health").status_code == 503


def test_a_token_that_the_model_has_no_embedding_for_harms_nobody():
    opened = opened_model()
    config = BackboneConfig(model=str(judge_path()), max_length=MAX_LENGTH)
    hf_tokenizer = load_tokenizer(config).hf_tokenizer
    # As many people add one, without a row for it in the model.
    hf_tokenizer.add_special_tokens({"additional_special_tokens": ["<|mine|>"]})
    tokenizer = ConversationTokenizer(hf_tokenizer, max_length=MAX_LENGTH)
    with running(replace(opened, tokenizer=tokenizer)) as server:
        answer = server.post("/get_reward", {"query": ["Hi.", "Well <|mine|> then."]})
        assert answer.status_code == 422
        assert "query[1]: token '<|mine|>' (id 16384)" in answer.json()["error"]
        still_answers(server)
        hostile = ([Message(role="user", content="<|mine|>")], "<|mine|>")  # plain text there
        assert len(server.score(hostile)) == 1


def test_a_text_that_the_model_refuses_is_a_422_of_its_own_request(monkeypatch):
    def windowed(model, sequences, **named):
        if max(map(len, sequences)) > 60:
            raise InputError("attention window 60 tokens: a sequence of … is longer")
        return score_sequences(model, sequences, **named)

    monkeypatch.setattr(server_module, "score_sequences", windowed)
    with running() as server, ThreadPoolExecutor(8) as pool:
        queries = [["Hi."], ["Ho.", "long " * 90]] * 8
        answers = list(pool.map(lambda one: server.post("/", {"query": one}), queries))
        assert [answer.status_code for answer in answers] == [200, 422] * 8
        assert answers[1].json()["error"].startswith("text 1 (counted from 0) of ")
        assert server.get("/health").status_code == 200


def test_log_lines_have_sizes_and_no_texts(server, caplog):
    with caplog.at_level(logging.INFO, logger="encore.serving"):
        server.post("/get_reward", {"query": ["a secret", "another secret"]})
        server.get("/secret?secret=secret")
        server.post("/score", {"secret": "secret"})
        for beginning in (
            "POST /get_reward: 200, 2 texts, ",
            "GET other: 404, 0 texts, 0 tokens",
            "POST /score: 422",
        ):  # a line is written when the answer is already on its way
            wait_for(lambda text=beginning: any(line.startswith(text) for line in caplog.messages))
    assert "secret" not in caplog.text
