"""Answers of the reward server, also to requests that are malformed, too large, slow or gone."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any
from unittest.mock import Mock

import httpx
import numpy as np
import pytest
from starlette.exceptions import HTTPException

from encore.data.records import Message
from encore.model.score_sequences import score_sequences
from encore.serving import reward_app
from encore.serving.reward_requests import RewardRequest, read_request
from tests.serving.servers import PATIENCE, Running, make_conversations, running, score_offline
from tests.worlds.models import MEANS, RULES, WEIGHTS, opened_model
from tests.worlds.servers import wait_until
from tests.worlds.tokenizers import llama_3

pytestmark = pytest.mark.services

JSON = {"content-type": "application/json"}
HEAD = "POST /score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
#: The weights in head order: a reward is the weighted sum of centred scores.
WEIGHT_R = np.array([WEIGHTS[rule] for rule in RULES])
GOOD = {"messages": [{"role": "user", "content": "a"}], "response": "b"}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """Start a server with small limits of a request's bytes and queries, others by default."""
    with running(max_request_bytes=200_000, max_queries=64) as running_server:
        yield running_server


def still_answers(server: Running) -> None:
    assert server.post("/get_reward", {"query": ["Hi."]}).status_code == 200


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/get_reward", "/"])
def test_old_and_new_clients_of_openrlhf_get_the_rewards_of_offline_scoring(server, path):
    conversations = make_conversations(12)
    score_NR = score_offline(conversations)
    queries = [opened_model().tokenizer.render(*conversation) for conversation in conversations]
    # Since 0.6 clients send prompts and labels too, of any JSON.
    new = {"query": queries, "prompts": queries, "labels": [None, "a", 1.5] * 4}
    for body in ({"query": queries}, new):
        answer = server.post(path, body).json()
        np.testing.assert_allclose(answer["rewards"], score_NR @ WEIGHT_R, atol=1e-5)
        assert answer["scores"] == answer["rewards"]  # as from OpenRLHF's own server
        assert list(answer["extra_logs"]) == list(RULES)
        logged_RN = list(answer["extra_logs"].values())
        np.testing.assert_allclose(logged_RN, (score_NR + MEANS).T, atol=1e-5)


def test_a_conversation_is_scored_rule_by_rule_and_contributions_sum_to_the_reward(server):
    conversations = [
        *make_conversations(8),
        ((Message(role="user", content="word " * 2_000),), "Yes."),
    ]
    score_NR = score_offline(conversations)
    records = [
        {"messages": [asdict(turn) for turn in prompt], "response": response}
        for prompt, response in conversations
    ]
    body = {"conversations": records}
    results = server.post("/score", body).json()["results"]
    for result, conversation, score_R in zip(results, conversations, score_NR, strict=True):
        expected = {
            "score": score_R + MEANS,
            "centred_score": score_R,
            "weight": WEIGHT_R,
            "contribution": WEIGHT_R * score_R,
        }
        assert [rule["rule_id"] for rule in result["rules"]] == list(RULES)
        for name, column in expected.items():
            values = [rule[name] for rule in result["rules"]]
            np.testing.assert_allclose(values, column, atol=1e-5)
        total = sum(rule["contribution"] for rule in result["rules"])
        assert result["reward"] == pytest.approx(total, abs=1e-6)
        # The weighted mean is 0.425 = 0.5 * 0.25 + 0.3 * 0.5 + 0.2 * 0.75.
        assert result["reward_shown"] == pytest.approx(result["reward"] + 0.425)
        encoded = opened_model().tokenizer.encode(*conversation)
        assert result["num_tokens"] == len(encoded.token_ids)
    assert [result["num_cut"] > 500 for result in results] == [False] * 8 + [True]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_is_a_500(monkeypatch, server, value):
    def score(_model, sequences, **_options):
        return np.full((len(sequences), len(RULES)), [0, value, 0], dtype=np.float32)

    monkeypatch.setattr(reward_app, "score_sequences", score)
    for path, body in (("/get_reward", {"query": ["a"]}), ("/score", {"conversations": [GOOD]})):
        answer = server.post(path, body)
        assert answer.status_code == 500
        assert answer.json() == {"error": "the model's score of a text is not a finite number"}
    assert server.get("/health").status_code == 200


# --- malformed ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("/get_reward", b'{"query": ["\xff\xfe"]}', 400, "invalid unicode"),
        ("/get_reward", b'{"query": ["\\ud800"]}', 400, "Invalid JSON"),
        ("/get_reward", b'{"query": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", 400, "recursion"),
        ("/get_reward", b'{"query": ["a", 3]}', 422, "query[1]: Input should be a valid string"),
        ("/get_reward", b'{"query": ["a", ""]}', 422, "text 1 (counted from 0): an empty text"),
        ("/get_reward", b'{"query": ["a"], "prompts": []}', 422, "0 prompts for 1 queries"),
        ("/get_reward", b'{"query": ["a"], "url": 1}', 422, "url: Extra inputs are not permitted"),
        ("/get_reward", json.dumps({"query": ["a"] * 65}).encode(), 413, "65 texts in one"),
    ],
)  # fmt: skip
def test_a_malformed_body_is_refused_with_the_reason(server, path, body, status, reason):
    answer = httpx.post(server.url + path, content=body, headers=JSON, timeout=PATIENCE)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    assert reason in answer.json()["error"]


def test_a_body_full_of_mistakes_takes_little_memory():
    body = "{" + ",".join(f'"{number}":1' for number in range(90_000)) + "}"
    tracemalloc.start()
    try:
        with pytest.raises(HTTPException, match="422: 90001 keys that are missing or not known"):
            read_request(body.encode(), RewardRequest, 1024)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * len(body)  # a description of each key takes several times that


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/get_reward", {}, 405),
        ("GET", "/score/", {}, 404),
        ("GET", "/%1b%5b31m%0d%0aset-cookie:%20a", {}, 404),
        ("POST", "/get_reward", {"content-type": "text/plain"}, 415),
        ("POST", "/get_reward", {}, 415),
        ("POST", "/get_reward", {**JSON, "content-encoding": "gzip"}, 415),
    ],
)
def test_unknown_paths_methods_and_types_are_refused_in_json(server, method, path, headers, status):
    answer = httpx.request(
        method, server.url + path, headers=headers, content=b'{"query": ["a"]}', timeout=PATIENCE
    )
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
    assert ("allow" in answer.headers) == (status == 405)
    assert "set-cookie" not in answer.headers


def test_log_lines_and_reasons_have_no_text_of_a_client(server, caplog):
    with caplog.at_level(logging.INFO, logger="encore.serving"):
        server.post("/get_reward", {"query": ["a secret", "another secret"]})
        server.get("/secret?secret=secret")
        answer = server.post("/get_reward", {"query": ["a", {"secret": "secret"}], "k" * 5_000: 1})
        for beginning in (
            "POST /get_reward: 200, 2 texts, ",
            "GET other: 404, 0 texts, 0 tokens",
            "POST /get_reward: 422",
        ):  # a line is written when the answer is already on its way
            wait_until(
                lambda text=beginning: any(line.startswith(text) for line in caplog.messages),
                seconds=PATIENCE,
                event=beginning,
            )
    assert "secret" not in caplog.text + answer.text
    assert len(answer.text) < 400


# --- too large, too slow, gone, stopped -----------------------------------------------------------


@pytest.mark.parametrize("is_chunked", [False, True])
def test_the_sender_of_a_body_that_is_too_large_gets_the_reason(server, is_chunked):
    body = json.dumps({"query": ["y" * 3_000_000]}).encode()
    content = iter([body[:70_000], body[70_000:]]) if is_chunked else body
    answer = httpx.post(f"{server.url}/get_reward", content=content, headers=JSON, timeout=PATIENCE)
    assert answer.status_code == 413
    assert "expected at most 200000" in answer.json()["error"]
    still_answers(server)


def test_a_client_that_does_not_finish_its_body_is_disconnected_with_408(server, monkeypatch):
    monkeypatch.setattr(reward_app, "BODY_SECONDS", 0.4)
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(f'{HEAD}content-length: 50\r\n\r\n{{"con'.encode())
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 408
        assert b"did not arrive within 0.4 s (5 bytes did)" in answer.read()
        assert connection.recv(1) == b""


def test_bodies_of_all_clients_together_are_bounded():
    with running(max_request_bytes=1_000) as server, contextlib.ExitStack() as stack:
        # 16 bodies of the largest size may be held; these lack their last byte.
        for _ in range(16):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(f"{HEAD}content-length: 1000\r\n\r\n".encode() + b" " * 999)

        def post_body() -> httpx.Response:
            return server.post("/get_reward", {"query": ["y" * 400]})

        wait_until(lambda: post_body().status_code == 503, seconds=PATIENCE, event="a 503")
        assert post_body().headers["retry-after"] == "1"
        stack.close()
        wait_until(lambda: post_body().status_code == 200, seconds=PATIENCE, event="a 200")


class HeldScoring:
    """Scoring that waits until a test sets `may_go_on`."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()
        self.num_texts = 0

    def __call__(self, model, sequences, **options):
        self.has_begun.set()
        assert self.may_go_on.wait(PATIENCE)
        self.num_texts += len(sequences)
        return score_sequences(model, sequences, **options)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldScoring]:
    scoring = HeldScoring()
    monkeypatch.setattr(reward_app, "score_sequences", scoring)
    yield scoring
    scoring.may_go_on.set()


async def ask_as_openrlhf(port: int, query: str, pause_seconds: float) -> Any:
    """Ask for one reward as OpenRLHF does: five tries, a new connection each; None if all fail."""
    body = json.dumps({"query": [query], "prompts": [""], "labels": [None]})
    head = (
        HEAD.replace("/score", "/get_reward") + f"connection: close\r\ncontent-length: {len(body)}"
    )
    for _ in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{head}\r\n\r\n{body}".encode())
        answer = await reader.read()
        writer.close()
        if answer.startswith(b"HTTP/1.1 200"):
            return json.loads(answer.partition(b"\r\n\r\n")[2])["rewards"][0]
        await asyncio.sleep(pause_seconds)
    return None


@pytest.mark.parametrize(
    ("queue_seconds", "pause_seconds"),
    [(1.5, 0.02), pytest.param(60.0, 1.0, marks=pytest.mark.full)],
)
def test_a_thousand_clients_of_openrlhf_lose_no_reward_while_the_queue_is_full(
    monkeypatch, queue_seconds, pause_seconds
):
    queries = [f"{number:04}" for number in range(1_000)]

    def score(_model, sequences, **_options):  # four bytes, four tokens
        time.sleep(queue_seconds * sum(map(len, sequences)) / (4 * len(queries)))
        return np.full((len(sequences), len(RULES)), [1, 0, 0], dtype=np.float32)

    async def ask_all(port: int) -> list[Any]:
        tries = (ask_as_openrlhf(port, query, pause_seconds) for query in queries)
        async with asyncio.timeout(180):
            return await asyncio.gather(*tries)

    monkeypatch.setattr(reward_app, "score_sequences", score)
    with running(max_batch_tokens=40, max_queue_tokens=80) as server:
        rewards = asyncio.run(ask_all(server.port))
        metrics = server.get("/metrics").text
    assert rewards == [WEIGHTS["be-kind"]] * len(queries)  # a score of 1 on the first rule
    assert 'path="/get_reward",status="503"' not in metrics


def test_texts_of_a_client_that_went_away_are_not_computed(held):
    with running(max_batch_tokens=8) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.post, "/get_reward", {"query": ["Hi."]})
        assert held.has_begun.wait(PATIENCE)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/get_reward", json={"query": ["gone " * 9] * 7}, timeout=0.3)
        name = 'encore_requests_total{path="/get_reward",status="499"}'
        wait_until(lambda: name in server.get("/metrics").text, seconds=PATIENCE, event=name)
        held.may_go_on.set()
        assert first.result().status_code == 200
        still_answers(server)
    assert held.num_texts == 2  # the first text, and that of `still_answers`


def test_stopping_cancels_requests_after_its_time_limit(held):
    with ThreadPoolExecutor(1) as pool, running(stop_seconds=1) as server:
        answer = pool.submit(server.post, "/get_reward", {"query": ["Hi."]})
        assert held.has_begun.wait(PATIENCE)
        threading.Timer(2.0, held.may_go_on.set).start()
    assert answer.result().status_code == 503
    assert "the server stops" in answer.result().json()["error"]


def test_a_failing_model_is_a_500_for_its_clients_and_makes_health_a_503(monkeypatch, caplog):
    error = RuntimeError("CUDA out of memory")
    monkeypatch.setattr(reward_app, "score_sequences", Mock(side_effect=error))
    with running() as server:
        for _ in range(3):
            assert server.get("/health").status_code == 200
            answer = server.post("/get_reward", {"query": ["a secret of the client"]})
            assert answer.status_code == 500
        assert server.get("/health").status_code == 503
    assert "CUDA out of memory" in caplog.text
    assert "secret" not in caplog.text + answer.text


def test_a_token_without_an_embedding_is_refused_and_the_server_goes_on():
    # People add tokens to a tokenizer without adding rows to the model.
    hf_tokenizer = llama_3()
    num_embeddings = len(hf_tokenizer)
    hf_tokenizer.add_special_tokens({"additional_special_tokens": ["<|mine|>"]})
    with running(opened_model(tokenizer=hf_tokenizer, vocab_size=num_embeddings)) as server:
        answer = server.post("/get_reward", {"query": ["Hi.", "Well <|mine|> then."]})
        assert answer.status_code == 422
        reason = f"text 1 (counted from 0): token '<|mine|>' (id {num_embeddings}) has no embedding"
        assert reason in answer.json()["error"]
        still_answers(server)
