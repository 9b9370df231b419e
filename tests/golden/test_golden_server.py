"""Golden: the answers of `encore serve`, in a process of its own, to fixed requests."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.golden.conftest import GoldenStudy
from tests.golden.same import ANY, PROBED, check_golden, mask_keys_and_paths
from tests.signals import encore_process

TIMEOUT_SECONDS = 90.0
PROMPT = [{"role": "user", "content": "May I share the neighbour's letters?"}]
CHAT = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Say something nasty."},
]
KIND = {"messages": PROMPT, "response": "Better not: they are private."}
UNKIND = {"messages": CHAT, "response": "You are the worst."}
TEXTS = ["<bos><user>Hello<eot><assistant>Good day.<eot>", "plain text", ""]

#: By name: method, path, and body (JSON, or text that is sent unchanged).
REQUESTS: dict[str, tuple[str, str, Any]] = {
    "health": ("GET", "/health", None),
    "model": ("GET", "/model", None),
    "get-reward": ("POST", "/get_reward", {"query": TEXTS[:2]}),
    "root": ("POST", "/", {"query": TEXTS[:1]}),
    "get-reward-with-prompts": ("POST", "/get_reward", {"query": TEXTS[:2], "prompts": ["a", "b"]}),
    "get-reward-one-text": ("POST", "/get_reward", {"query": TEXTS[0]}),
    "get-reward-nothing": ("POST", "/get_reward", {"query": []}),
    "get-reward-empty-text": ("POST", "/get_reward", {"query": [""]}),
    "get-reward-number": ("POST", "/get_reward", {"query": [1]}),
    "get-reward-no-query": ("POST", "/get_reward", {"text": "a"}),
    "get-reward-list": ("POST", "/get_reward", ["a"]),
    "get-reward-not-json": ("POST", "/get_reward", "{query:"),
    "get-reward-too-many": ("POST", "/get_reward", {"query": ["a"] * 9}),
    "get-reward-too-large": ("POST", "/get_reward", {"query": ["a" * 30_000]}),
    "get-reward-too-long": ("POST", "/get_reward", {"query": ["word " * 400]}),
    "score": ("POST", "/score", {"conversations": [KIND, UNKIND]}),
    "score-nothing": ("POST", "/score", {"conversations": []}),
    "score-no-response": ("POST", "/score", {"conversations": [{"messages": PROMPT}]}),
    "score-bad-role": (
        "POST",
        "/score",
        {"conversations": [{"messages": [{"role": "king", "content": "a"}], "response": "b"}]},
    ),
    "score-no-messages": ("POST", "/score", {"conversations": [{"messages": [], "response": "b"}]}),
    "score-text": ("POST", "/score", {"conversations": "a"}),
    "score-by-get": ("GET", "/score", None),
    "no-such-path": ("GET", "/nosuch", None),
}


@pytest.fixture(scope="module")
def url(golden_study: GoldenStudy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the probe's heads with ENCORE's weights and small limits; yield the URL."""
    log = tmp_path_factory.mktemp("server") / "log"
    options = (
        *("--port", 0, "--scheme", "encore", "--ratings", golden_study.folder),
        *("--max-queries", 8, "--max-request-bytes", 20_000, "--json"),
    )
    with (
        log.open("w") as errors,
        encore_process("serve", golden_study.probe_run, *options, stderr=errors) as process,
    ):
        yield json.loads("".join(itertools.islice(process.stdout, 5)))["url"]
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT_SECONDS)
    assert "Traceback" not in log.read_text()


@pytest.mark.services
def test_answers_and_refusals(url):
    """The text of a refusal may change; its status and keys may not, and it stays one line."""
    seen = {name: answer_to(url, *request) for name, request in REQUESTS.items()}
    tolerances = {
        "*.answer.*": PROBED,
        "*.answer.error": ANY,
        "*.answer.digest": ANY,
        "*.ratings_sha256": ANY,  # of files whose footers have the versions of packages
        "model.answer.*version*": ANY,
    }
    check_golden("server", mask_keys_and_paths(seen), tolerances)


def answer_to(url: str, method: str, path: str, body: Any) -> dict[str, Any]:
    """Send one request; return the status and the JSON of its answer."""
    response = httpx.request(
        method,
        url + path,
        content=body if body is None or isinstance(body, str) else json.dumps(body),
        headers={} if body is None else {"content-type": "application/json"},
        timeout=TIMEOUT_SECONDS,
    )
    answer = response.json()
    assert response.status_code < 400 or "\n" not in answer["error"]
    return {"status": response.status_code, "answer": answer}
