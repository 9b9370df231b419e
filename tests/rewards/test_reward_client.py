"""The client gets what the server computes, tries again while that helps, and else raises."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from encore.core.errors import InputError
from encore.core.listening import listen
from encore.rewards import RewardClient, RewardUnavailableError, reward_client
from encore.rewards.conversations import conversation_json
from tests.serving.servers import answering, make_conversations, running, score_offline
from tests.test_architecture import ROOT
from tests.worlds.models import RULES, WEIGHTS

pytestmark = pytest.mark.services

MODEL = {
    "digest": "d",
    "rules": [{"rule_id": "kind", "weight": 0.5}, {"rule_id": "watched", "weight": 0}],
    "reward_mean": 0.25,
    "limits": {"max_queries": 2, "max_request_bytes": 10_000},
}


def rule(rule_id: str, score: float, weight: float, **fields: Any) -> dict[str, Any]:
    return {
        "rule_id": rule_id,
        "centred_score": score,
        "weight": weight,
        "contribution": score * weight,
        **fields,
    }


def entry(score: float, **fields: Any) -> dict[str, Any]:
    rules = [rule("kind", score, 0.5, **fields), rule("watched", 2.0, 0, is_in_reward=False)]
    return {"reward": 0.5 * score, "rules": rules}


def infinite(number: str, field: str) -> Response:
    """Return an answer in whose JSON one number is this text."""
    answer = {"digest": "d", "results": [entry(1)]}
    record = answer["results"][0] if field == "reward" else answer["results"][0]["rules"][0]
    assert field in record
    record[field] = "NUMBER"
    return PlainTextResponse(json.dumps(answer).replace('"NUMBER"', number))


def texts(*responses: str) -> list[str]:
    return [conversation_json("A question.", response) for response in responses]


class ScriptedServer:
    """A server that gives one answer after the other to `POST /score`, then the last again."""

    def __init__(self, *answers: Response | Callable[[Any], Response]) -> None:
        self.answers = list(answers)
        self.bodies: list[Any] = []
        routes = [
            Route("/score", self.score, methods=["POST"]),
            Route("/model", lambda _request: JSONResponse(MODEL)),
        ]
        self.app = Starlette(routes=routes)

    async def score(self, request: Request) -> Response:
        self.bodies.append(json.loads(await request.body()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer if isinstance(answer, Response) else answer(self.bodies[-1])


def rewards_of(body: Any) -> Response:
    """Answer with the number of characters of each response as its score."""
    results = [entry(float(len(text["response"]))) for text in body["conversations"]]
    return JSONResponse({"digest": "d", "results": results})


@contextlib.contextmanager
def scripted(*answers: Any, **options: Any) -> Iterator[tuple[RewardClient, ScriptedServer]]:
    server = ScriptedServer(*answers)
    with (
        listen("127.0.0.1", 0) as listener,
        answering(server.app, listener) as url,
        RewardClient(url, **options) as client,
    ):
        yield client, server


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_client, "_FIRST_WAIT_SECONDS", 0.01)


# --- rewards --------------------------------------------------------------------------------------


def test_rewards_are_those_of_offline_scoring_in_any_loop_and_thread():
    conversations = make_conversations(9)
    score_NR = score_offline(conversations)
    weight_R = [WEIGHTS[rule_id] for rule_id in RULES]
    bodies = [
        conversation_json([{"role": m.role, "content": m.content} for m in turns], response)
        for turns, response in conversations
    ]
    with running() as server, RewardClient(server.url) as client, ThreadPoolExecutor(2) as pool:
        assert client.model.weights == WEIGHTS
        assert [*client.model.weights] == list(RULES)
        batches = [
            client.score(bodies),
            asyncio.run(client.score_async(bodies)),
            asyncio.run(client.score_async(bodies)),  # another event loop
            *pool.map(client.score, [bodies] * 2),
        ]
    for rewards in batches:
        np.testing.assert_allclose([r.reward for r in rewards], score_NR @ weight_R, atol=1e-5)
        scores = [[reward.scores[rule_id] for rule_id in RULES] for reward in rewards]
        np.testing.assert_allclose(scores, score_NR, atol=1e-5)
        for reward in rewards:
            assert sum(reward.contributions.values()) == pytest.approx(reward.reward, abs=1e-6)
            assert not reward.left_out


def test_batches_are_sent_in_parts_that_the_server_takes_and_keep_their_order():
    with scripted(rewards_of) as (client, server):
        # Two texts in a request; two of 6,000 characters have more than 10,000 bytes.
        rewards = client.score(texts("a", "bb", "c" * 6_000, "d" * 6_001, "eee"))
    assert [reward.reward for reward in rewards] == [0.5, 1, 3_000, 3_000.5, 1.5]
    lengths = [[len(t["response"]) for t in body["conversations"]] for body in server.bodies]
    assert sorted(lengths) == [[1, 2], [6_000], [6_001, 3]]


def test_a_rule_that_was_left_out_adds_nothing_and_a_watched_one_keeps_its_score():
    results = [entry(4.0, is_in_reward=False), entry(6.0)]
    with scripted(JSONResponse({"digest": "d", "results": results})) as (client, _):
        dropped, whole = client.score(texts("a", "b"))
    assert (dropped.left_out, whole.left_out) == ({"kind"}, frozenset())
    assert dropped.contributions == {"kind": 0, "watched": 0}
    assert whole.contributions == {"kind": 3, "watched": 0}
    assert dropped.scores["watched"] == 2


@pytest.mark.parametrize(
    ("prompt", "completion", "messages", "response"),
    [
        ("Q", "A", [("user", "Q")], "A"),
        (
            [{"role": "system", "content": "S"}, {"role": "user", "content": "Q", "name": "n"}],
            [{"role": "assistant", "content": "A", "tool_calls": None}],
            [("system", "S"), ("user", "Q")],
            "A",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "Q"}]}],
            [
                {"role": "assistant", "content": "A"},
                {"role": "user", "content": "And?"},
                {"role": "assistant", "content": "B"},
            ],
            [("user", "Q"), ("assistant", "A"), ("user", "And?")],
            "B",
        ),
    ],
)
def test_plain_and_conversational_prompts_are_read(prompt, completion, messages, response):
    conversation = json.loads(conversation_json(prompt, completion))
    turns = [(turn["role"], turn["content"]) for turn in conversation["messages"]]
    assert (turns, conversation["response"]) == (messages, response)


@pytest.mark.parametrize(
    ("completion", "problem"),
    [
        ([], "ends with nobody"),
        ([{"role": "user", "content": "Q"}], "ends with user"),
        ([{"role": "tool", "content": "1"}], "role 'tool'"),
        ([{"role": "assistant", "content": None}], "no calls of tools"),
        ([{"role": "assistant", "content": [{"type": "image_url"}]}], "no images"),
    ],
)
def test_a_completion_that_the_model_cannot_read_is_refused(completion, problem):
    with pytest.raises(InputError, match=problem):
        conversation_json("Q", completion)


# --- failures -------------------------------------------------------------------------------------


def test_busy_and_failing_servers_are_asked_again_after_the_time_that_they_name(monkeypatch):
    waits = []

    async def no_sleep(seconds: float) -> None:
        waits.append(seconds)

    quick = SimpleNamespace(**(vars(asyncio) | {"sleep": no_sleep}))
    monkeypatch.setattr(reward_client, "asyncio", quick)
    answers = [
        PlainTextResponse("busy", 503, {"retry-after": "1"}),
        PlainTextResponse("slow down", 429),
        PlainTextResponse("oops", 500, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}),
        rewards_of,
    ]
    with scripted(*answers) as (client, server):
        [reward] = client.score(texts("four"))
    assert reward.reward == 2
    assert len(server.bodies) == 4
    assert waits[0] == 1
    assert all(0 < seconds < 1 for seconds in waits[1:])  # of its own choice; no date is waited for


def test_a_server_that_stays_away_is_an_error_after_the_time_limit_and_never_a_reward():
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    with (
        RewardClient(f"http://127.0.0.1:{port}", max_seconds=0.3) as client,
        pytest.raises(RewardUnavailableError, match=r"within 0\.3 s \(last: ConnectError"),
    ):
        client.score(texts("a"))
    with (
        scripted(PlainTextResponse("busy", 503), max_seconds=1) as (client, _),
        pytest.raises(RewardUnavailableError, match="status 503: busy"),
    ):
        client.score(texts("a"))


@pytest.mark.timeout(60)
def test_a_client_that_is_closed_cancels_its_open_requests():
    def never(_body: Any) -> Response:
        is_closed.wait()
        return PlainTextResponse("late")

    is_closed = threading.Event()
    with scripted(never) as (client, server):
        future = client.submit(texts("a"))
        while not server.bodies:
            time.sleep(0.01)
        client.close()
        is_closed.set()
    assert future.cancelled()


@pytest.mark.timeout(60)
def test_a_server_that_never_answers_is_an_error_after_the_time_limit():
    with (
        listen("127.0.0.1", 0) as listener,
        RewardClient(f"http://127.0.0.1:{listener.getsockname()[1]}", max_seconds=0.3) as client,
        pytest.raises(RewardUnavailableError, match=r"within 0\.3 s"),
    ):
        client.score(texts("a"))


def test_a_request_that_was_given_up_leaves_its_connection_to_the_next(monkeypatch):
    def late(body: Any) -> Response:
        time.sleep(0.8)
        return rewards_of(body)

    monkeypatch.setattr(reward_client, "_MAX_CONNECTIONS", 1)
    with scripted(late, rewards_of) as (client, _):
        assert client.model.digest == "d"
        client._max_seconds = 0.2
        with pytest.raises(RewardUnavailableError):
            client.score(texts("a"))
        client._max_seconds = 20
        assert client.score(texts("ab"))[0].reward == 1


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (JSONResponse({"error": "text 0: too odd"}, 422), "status 422: .*too odd"),
        (PlainTextResponse("", 307, {"location": "/elsewhere"}), "status 307"),
        (PlainTextResponse("<html>"), "not JSON"),
        (JSONResponse({"digest": "other", "results": [entry(1)]}), "another model"),
        (JSONResponse({"digest": "d", "results": []}), "0 rewards for 1 texts"),
        (JSONResponse({"digest": "d", "results": [{"error": "too odd"}]}), "text 0 .*too odd"),
        (JSONResponse({"digest": "d", "results": [{"reward": 1, "rules": []}]}), "no reward"),
        (JSONResponse({"digest": "d", "results": [{"reward": None, "rules": []}]}), "no reward"),
        *(
            (infinite(number, field), "text 0 .*no reward")
            for number in ("1e999", "-1e999", "Infinity", "NaN", "1" + 400 * "0")
            for field in ("reward", "centred_score", "contribution")
        ),
    ],
)  # fmt: skip
def test_an_answer_without_every_reward_is_an_error_at_once(answer, problem):
    with scripted(answer) as (client, server), pytest.raises(InputError, match=problem):
        client.score(texts("a"))
    assert len(server.bodies) == 1


def test_a_closed_client_and_its_copy_in_another_process_connect_again():
    with scripted(rewards_of, max_seconds=7, headers={"x-key": "k"}) as (client, _):
        with copy.copy(client) as second:  # made as pickle makes it
            assert (second._max_seconds, second._headers) == (7, {"x-key": "k"})
            for user in (client, second):
                assert user.score(texts("ab"))[0].reward == 1
        client.close()
        assert client.score(texts("ab"))[0].reward == 1


# --- weight of the client -------------------------------------------------------------------------


def test_the_client_is_light_to_import_and_needs_no_other_package():
    program = (  # without site-packages, so nothing but this checkout can be imported
        f"import sys, time; sys.path.insert(0, {str(ROOT)!r}); started = time.process_time(); "
        "import encore.rewards; print(time.process_time() - started, *sys.modules)"
    )
    command = [sys.executable, "-I", "-S", "-c", program]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    roots = {name.partition(".")[0] for name in printed[1:]}
    assert roots <= {"encore", "__main__", *sys.stdlib_module_names}
    assert float(printed[0]) < 1  # measured 0.12 s of processor


def test_the_client_takes_less_than_a_millisecond_of_processor_a_text():
    answer = json.dumps({"digest": "d", "results": [entry(1.0)] * 200}).encode()
    with scripted(Response(answer, media_type="application/json")) as (client, _):
        client.__dict__["model"] = replace(client.model, max_texts=200, max_bytes=8 << 20)
        conversations = [("word " * 400, "word " * 400)] * 200
        started = time.process_time()
        rewards = client.score([conversation_json(*pair) for pair in conversations])
        seconds = time.process_time() - started
    assert len(rewards) == 200
    assert seconds / 200 < 0.001  # with the server's share
