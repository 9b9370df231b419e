"""Malformed requests: each gets a 4xx with a reason, and none changes what the others get."""

from __future__ import annotations

import json
import tracemalloc

import httpx
import pytest
from pydantic_core import from_json

from encore.serving.reward_requests import Refusal, RewardRequest, ScoreRequest, read_request
from tests.serving.models import PATIENCE, Running

JSON = {"content-type": "application/json"}
GOOD_SCORE = {"conversations": [{"messages": [{"role": "user", "content": "a"}], "response": "b"}]}


def post(server: Running, path: str, body: bytes, **headers: str) -> httpx.Response:
    return httpx.post(
        server.url + path, content=body, headers={**JSON, **headers}, timeout=PATIENCE
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("/get_reward", b"", 400, "not JSON"),
        ("/get_reward", b'{"query": ["a"]', 400, "not JSON: EOF while parsing"),
        ("/get_reward", b'{"query": ["\xff\xfe"]}', 400, "byte 12 is not UTF-8"),
        ("/get_reward", '{"query": ["a"]}'.encode("utf-16"), 400, "is not UTF-8"),
        ("/get_reward", b'{"query": ["\\ud800"]}', 400, "not JSON"),
        ("/get_reward", b'{"query": ["a"], "labels": [NaN]}', 400, "not JSON"),
        ("/get_reward", b'{"query": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", 400, "recursion"),
        ("/get_reward", b"[]", 422, "body"),
        ("/get_reward", b"{}", 422, "query: Field required"),
        ("/get_reward", b'{"query": "a"}', 422, "query: Input should be a valid list"),
        ("/get_reward", b'{"query": []}', 422, "query: List should have at least 1 item"),
        ("/get_reward", b'{"query": ["a", 3]}', 422, "query[1]: Input should be a valid string"),
        ("/get_reward", b'{"query": ["a", ""]}', 422, "query[1]: an empty text"),
        ("/get_reward", b'{"query": ["a"], "prompts": []}', 422, "0 prompts for 1 queries"),
        ("/get_reward", b'{"query": ["a"], "labels": [1, 2]}', 422, "2 labels for 1 queries"),
        ("/get_reward", b'{"query": ["a"], "url": 1}', 422, "url: Extra inputs are not permitted"),
        ("/get_reward", json.dumps({"query": ["a"] * 65}).encode(), 413, "65 texts in one"),
        ("/score", b"{}", 422, "conversations: Field required"),
        ("/score", b'{"conversations": [{}]}', 422, "conversations[0].messages: Field required"),
        (
            "/score",
            json.dumps(GOOD_SCORE).replace("user", "root").encode(),
            422,
            "conversations[0].messages[0].role",
        ),
        ("/score", b'{"conversations": [{"messages": [], "response": "b"}]}', 422, "at least 1"),
    ],
)  # fmt: skip
def test_each_kind_of_malformed_body_hears_what_is_wrong(server, path, body, status, reason):
    answer = post(server, path, body)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    assert reason in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


LARGEST = 1 << 20
MESSAGES = '{"conversations": [{"response": "b", "messages": '
#: Objects with as many keys that nobody asked for, lists with as many wrong items, as fit.
KEYS = "{" + ",".join(f'"{number:x}":0' for number in range(90_000)) + "}"
ITEMS = "[" + ",".join("1" * 500_000) + "]"


@pytest.mark.parametrize(
    ("kind", "body", "status", "reason"),
    [
        (RewardRequest, f'{{"query":["a"],"labels":{ITEMS}}}', 413, "labels: 500000"),
        (ScoreRequest, f'{{"conversations":{ITEMS}}}', 413, "conversations: 500000"),
        (ScoreRequest, MESSAGES + ITEMS + "}]}", 422, "messages[0]"),
        (RewardRequest, KEYS, 422, "90000 keys, expected only query, prompts, labels"),
        (ScoreRequest, MESSAGES + f"[{KEYS}]}}]}}", 422, "90000 keys, expected only role, content"),
    ],
    ids=["labels", "conversations", "messages", "keys", "keys-of-a-message"],
)
def test_a_body_full_of_mistakes_costs_little_more_than_reading_it(kind, body, status, reason):
    assert len(body) <= LARGEST
    tracemalloc.start()
    try:
        from_json(body, cache_strings="keys")
        as_json = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        with pytest.raises(Refusal) as caught:
            read_request(body.encode(), kind, max_texts=1024)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (caught.value.status, reason in caught.value.reason) == (status, True)
    # The body's text, a string once more, and the JSON in it: an error of each item would be
    # several times that.
    assert peak < as_json + 4 * LARGEST


def test_reasons_do_not_repeat_a_clients_texts(server):
    body = {"query": ["a", {"secret": "secret"}], "k" * 5_000: 1}
    reason = post(server, "/get_reward", json.dumps(body).encode()).json()["error"]
    assert "secret" not in reason
    assert len(reason) < 400


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/get_reward", {}, 405),
        ("PUT", "/score", JSON, 405),
        ("POST", "/health", JSON, 405),
        ("GET", "/", {}, 405),
        ("GET", "/score/", {}, 404),
        ("GET", "/%1b%5b31m%0d%0aset-cookie:%20a", {}, 404),
        ("POST", "/get_reward", {"content-type": "text/plain"}, 415),
        ("POST", "/get_reward", {}, 415),
        ("POST", "/get_reward", {**JSON, "content-encoding": "gzip"}, 415),
        ("POST", "/get_reward", {"content-type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_other_paths_methods_and_types_are_refused_in_json(server, method, path, headers, status):
    answer = httpx.request(
        method, server.url + path, headers=headers, content=b'{"query": ["a"]}', timeout=PATIENCE
    )
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
    assert ("allow" in answer.headers) == (status == 405)
    assert "\x1b" not in answer.text
    assert "set-cookie" not in answer.headers
