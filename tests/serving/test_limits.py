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
from dataclasses import replace

import httpx
import pytest
import torch

from encore.demo import judge_path
from encore.model.config import BackboneConfig
from encore.model.conversation import ConversationTokenizer
from encore.model.loading import load_tokenizer
from encore.model.scoring import score_sequences
from encore.serving import reward_app
from tests.serving.models import MAX_LENGTH, PATIENCE, Running, opened_model, running

HEAD = "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)


def answer_on(connection: socket.socket) -> tuple[int, dict[str, str]]:
    """Status and JSON of the next answer."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.status, json.loads(answer.read())


def still_answers(server: Running) -> None:
    assert server.post("/get_reward", {"query": ["Hi."]}).status_code == 200


def wait_for(claim) -> None:
    give_up = time.monotonic() + PATIENCE
    while not claim():
        assert time.monotonic() < give_up
        time.sleep(0.01)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_that_is_too_large_is_refused_and_its_sender_hears_it(server, is_chunked):
    body = json.dumps({"query": ["y" * 3_000_000]}).encode()
    answer = httpx.post(
        f"{server.url}/get_reward",
        content=iter([body[:70_000], body[70_000:]]) if is_chunked else body,
        headers={"content-type": "application/json"},
        timeout=PATIENCE,
    )
    assert answer.status_code == 413
    assert "expected at most 200000" in answer.json()["error"]
    still_answers(server)


def test_a_client_that_hangs_within_its_body_is_told_and_let_go(server, monkeypatch):
    monkeypatch.setattr(reward_app, "BODY_SECONDS", 0.4)
    with connect(server) as connection:
        connection.sendall(
            (HEAD.format(path="/score") + 'content-length: 50\r\n\r\n{"con').encode()
        )
        status, answer = answer_on(connection)
        assert connection.recv(1) == b""
    assert status == 408
    assert "did not arrive within 0.4 s (5 bytes did)" in answer["error"]


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
    monkeypatch.setattr(reward_app, "score_sequences", found)
    yield found
    found.may_go_on.set()


def in_background(server: Running, query: str) -> tuple[threading.Thread, list[httpx.Response]]:
    answers: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(server.post("/get_reward", {"query": [query]}))
    )
    thread.start()
    return thread, answers


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


@pytest.mark.parametrize(("stop_seconds", "seconds", "status"), [(25, 0.3, 200), (1, 3.0, 503)])
def test_stopping_answers_what_is_in_progress_but_does_not_wait_for_ever(
    held, stop_seconds, seconds, status
):
    with running(stop_seconds=stop_seconds) as server:
        thread, answers = in_background(server, "Hi.")
        assert held.has_begun.wait(PATIENCE)
        threading.Timer(seconds, held.may_go_on.set).start()
    thread.join(PATIENCE)
    assert [answer.status_code for answer in answers] == [status]
    assert status == 200 or "the server stops" in answers[0].json()["error"]
    with pytest.raises(httpx.TransportError):
        server.get("/health")


@pytest.mark.parametrize(
    ("error", "num_answers"),
    [(RuntimeError("CUDA out of memory"), 3), (torch.AcceleratorError("assert triggered"), 1)],
)
def test_a_failing_model_is_a_500_for_its_clients_and_told_by_health(
    monkeypatch, caplog, error, num_answers
):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(reward_app, "score_sequences", fails)
    with running() as server:
        for _ in range(num_answers):
            assert server.get("/health").status_code == 200
            answer = server.post("/get_reward", {"query": ["a secret of the client"]})
            assert answer.status_code == 500
            reason = "the model failed on this batch; see the server's log"
            assert answer.json() == {"error": reason}
        assert server.get("/health").status_code == 503
    assert str(error) in caplog.text
    assert "secret" not in caplog.text


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
