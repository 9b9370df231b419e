"""What clients read, and what they hear when a request is malformed, too large, slow or gone."""

from __future__ import annotations

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
from dataclasses import replace

import httpx
import numpy as np
import pytest
from starlette.exceptions import HTTPException

from encore.data.records import Message
from encore.demo import JUDGE_PATH
from encore.model.backbone_config import BackboneConfig
from encore.model.conversation import ConversationTokenizer
from encore.model.loading import load_tokenizer
from encore.model.score_sequences import score_sequences
from encore.serving import reward_app
from encore.serving.reward_requests import RewardRequest, read_request
from tests.serving.models import (
    HEAD_IDS,
    MAX_LENGTH,
    MEANS,
    PATIENCE,
    WEIGHTS,
    Running,
    as_json,
    make_conversations,
    opened_model,
    running,
    score_offline,
)

JSON = {"content-type": "application/json"}
HEAD = "POST /score HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
#: The weights in head order: a reward is the weighted sum of centred scores.
WEIGHT_R = np.array([WEIGHTS[head_id] for head_id in HEAD_IDS])
GOOD = {"messages": [{"role": "user", "content": "a"}], "response": "b"}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """Start a server with small limits of a request's bytes and queries, others by default."""
    with running(max_request_bytes=200_000, max_queries=64) as running_server:
        yield running_server


def wait_for(claim) -> None:
    give_up = time.monotonic() + PATIENCE
    while not claim():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def still_answers(server: Running) -> None:
    assert server.post("/get_reward", {"query": ["Hi."]}).status_code == 200


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/get_reward", "/"])
def test_openrlhfs_clients_old_and_new_get_the_rewards_of_offline_scoring(server, path):
    conversations = make_conversations(12)
    score_NR = score_offline(conversations)
    queries = [opened_model().tokenizer.render(*conversation) for conversation in conversations]
    # Since 0.6 clients send prompts and labels too, of any JSON.
    new = {"query": queries, "prompts": queries, "labels": [None, "a", 1.5] * 4}
    for body in ({"query": queries}, new):
        answer = server.post(path, body).json()
        np.testing.assert_allclose(answer["rewards"], score_NR @ WEIGHT_R, atol=1e-5)
        assert answer["scores"] == answer["rewards"]  # as OpenRLHF's own server has it
        assert list(answer["extra_logs"]) == list(HEAD_IDS)
        logged_RN = list(answer["extra_logs"].values())
        np.testing.assert_allclose(logged_RN, (score_NR + MEANS).T, atol=1e-5)


def test_a_conversation_is_scored_rule_by_rule_and_contributions_sum_to_the_reward(server):
    conversations = [
        *make_conversations(8),
        ((Message(role="user", content="word " * 2_000),), "Yes."),
    ]
    score_NR = score_offline(conversations)
    body = {"conversations": [as_json(*conversation) for conversation in conversations]}
    results = server.post("/score", body).json()["results"]
    for result, conversation, score_R in zip(results, conversations, score_NR, strict=True):
        expected = {
            "score": score_R + MEANS,
            "centred_score": score_R,
            "weight": WEIGHT_R,
            "contribution": WEIGHT_R * score_R,
        }
        assert [rule["rule_id"] for rule in result["rules"]] == list(HEAD_IDS)
        for name, column in expected.items():
            values = [rule[name] for rule in result["rules"]]
            np.testing.assert_allclose(values, column, atol=1e-5)
        total = sum(rule["contribution"] for rule in result["rules"])
        assert result["reward"] == pytest.approx(total, abs=1e-6)
        # The weighted means are 0.505, 0.2 * 0.9 + 0.3 * 0.25 + 0.5 * 0.5.
        assert result["reward_shown"] == pytest.approx(result["reward"] + 0.505)
        encoded = opened_model().tokenizer.encode(*conversation)
        assert result["num_tokens"] == len(encoded.token_ids)
    assert [result["num_cut"] > 500 for result in results] == [False] * 8 + [True]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_answer_with_a_score_that_is_no_number_is_a_500_and_not_nan(monkeypatch, server, value):
    def one_of_three(_model, sequences, **_named):
        return np.full((len(sequences), len(HEAD_IDS)), [0, value, 0], dtype=np.float32)

    monkeypatch.setattr(reward_app, "score_sequences", one_of_three)
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
def test_each_kind_of_malformed_body_hears_what_is_wrong(server, path, body, status, reason):
    answer = httpx.post(server.url + path, content=body, headers=JSON, timeout=PATIENCE)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    assert reason in answer.json()["error"]


def test_a_body_full_of_mistakes_costs_little_more_than_reading_it():
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
def test_other_paths_methods_and_types_are_refused_in_json(server, method, path, headers, status):
    answer = httpx.request(
        method, server.url + path, headers=headers, content=b'{"query": ["a"]}', timeout=PATIENCE
    )
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
    assert ("allow" in answer.headers) == (status == 405)
    assert "set-cookie" not in answer.headers


def test_neither_log_lines_nor_reasons_have_a_clients_texts(server, caplog):
    with caplog.at_level(logging.INFO, logger="encore.serving"):
        server.post("/get_reward", {"query": ["a secret", "another secret"]})
        server.get("/secret?secret=secret")
        answer = server.post("/get_reward", {"query": ["a", {"secret": "secret"}], "k" * 5_000: 1})
        for beginning in (
            "POST /get_reward: 200, 2 texts, ",
            "GET other: 404, 0 texts, 0 tokens",
            "POST /get_reward: 422",
        ):  # a line is written when the answer is already on its way
            wait_for(lambda text=beginning: any(line.startswith(text) for line in caplog.messages))
    assert "secret" not in caplog.text + answer.text
    assert len(answer.text) < 400


# --- too large, too slow, gone, stopped -----------------------------------------------------------


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_that_is_too_large_is_refused_and_its_sender_hears_it(server, is_chunked):
    body = json.dumps({"query": ["y" * 3_000_000]}).encode()
    content = iter([body[:70_000], body[70_000:]]) if is_chunked else body
    answer = httpx.post(f"{server.url}/get_reward", content=content, headers=JSON, timeout=PATIENCE)
    assert answer.status_code == 413
    assert "expected at most 200000" in answer.json()["error"]
    still_answers(server)


def test_a_client_that_hangs_within_its_body_is_told_and_let_go(server, monkeypatch):
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

        def one_more() -> httpx.Response:
            return server.post("/get_reward", {"query": ["y" * 900]})

        wait_for(lambda: one_more().status_code == 503)
        assert one_more().headers["retry-after"] == "1"
        stack.close()
        wait_for(lambda: one_more().status_code == 200)


class Held:
    """Scoring that waits until a test sets `may_go_on`."""

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
    scoring = Held()
    monkeypatch.setattr(reward_app, "score_sequences", scoring)
    yield scoring
    scoring.may_go_on.set()


def test_what_a_client_that_went_away_asked_for_is_not_computed(held):
    with running(max_batch_tokens=8) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.post, "/get_reward", {"query": ["Hi."]})
        assert held.has_begun.wait(PATIENCE)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/get_reward", json={"query": ["gone " * 9] * 7}, timeout=0.3)
        name = 'encore_requests_total{path="/get_reward",status="499"}'
        wait_for(lambda: name in server.get("/metrics").text)
        held.may_go_on.set()
        assert first.result().status_code == 200
        still_answers(server)
    assert held.num_texts == 2  # the first one, and that of `still_answers`


def test_stopping_does_not_wait_for_ever(held):
    with ThreadPoolExecutor(1) as pool, running(stop_seconds=1) as server:
        asked = pool.submit(server.post, "/get_reward", {"query": ["Hi."]})
        assert held.has_begun.wait(PATIENCE)
        threading.Timer(2.0, held.may_go_on.set).start()
    assert asked.result().status_code == 503
    assert "the server stops" in asked.result().json()["error"]


def test_a_failing_model_is_a_500_for_its_clients_and_told_by_health(monkeypatch, caplog):
    def fails(*_, **__):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(reward_app, "score_sequences", fails)
    with running() as server:
        for _ in range(3):
            assert server.get("/health").status_code == 200
            answer = server.post("/get_reward", {"query": ["a secret of the client"]})
            assert answer.status_code == 500
        assert server.get("/health").status_code == 503
    assert "CUDA out of memory" in caplog.text
    assert "secret" not in caplog.text + answer.text


def test_a_token_that_the_model_has_no_embedding_for_harms_nobody():
    config = BackboneConfig(model=str(JUDGE_PATH), max_length=MAX_LENGTH)
    hf_tokenizer = load_tokenizer(config).hf_tokenizer
    # As many people add one, without a row for it in the model.
    hf_tokenizer.add_special_tokens({"additional_special_tokens": ["<|mine|>"]})
    tokenizer = ConversationTokenizer(hf_tokenizer, max_length=MAX_LENGTH)
    with running(replace(opened_model(), tokenizer=tokenizer)) as server:
        answer = server.post("/get_reward", {"query": ["Hi.", "Well <|mine|> then."]})
        assert answer.status_code == 422
        assert "text 1 (counted from 0): token '<|mine|>' (id 16384)" in answer.json()["error"]
        still_answers(server)
