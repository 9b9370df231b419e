"""Decision models: each answer's probability lands at its rule; a failed question fails alone."""

from __future__ import annotations

import math
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import openai._base_client
import pytest
from pydantic import ValidationError

from encore.core.errors import EncoreError, JudgeUnavailableError
from encore.judges import http_server, http_servers
from encore.judges.base import Decoding, Reply
from encore.judges.decision_judge import DecisionJudge
from encore.judges.decision_protocol import decision_prompt
from encore.judges.judge_options import DecisionApi, JudgeConfig
from encore.rating.replies import read_answers
from tests.judges.decision_answers import QUESTION_FAULTS, level_probabilities, probability
from tests.judges.hostile_server import ANSWERS, KEY, MODEL, HostileServer, serving
from tests.judges.test_http_judge import TEXT, opened

APIS: tuple[DecisionApi, ...] = ("systemone", "decisions")
PREDICATE = Decoding(
    kind="expected", max_reply_tokens=16, labels=("0", "1"), num_scores=3, questions="predicate"
)
SCORE = replace(PREDICATE, labels=("0.0", "0.25", "0.5", "1.0"), questions="score")
STATES = [f"Human: {number}?\n\nAssistant: Yes." for number in range(20)]
TEXTS = ["It is kind.", "It is „true“.", "It is short."]
PROMPTS = [decision_prompt(state, TEXTS) for state in STATES]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(http_server, "MAX_RETRIES", 1)
    monkeypatch.setattr(http_servers, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)


def ask(
    server: HostileServer,
    api: DecisionApi,
    *,
    decoding: Decoding = PREDICATE,
    prompts: list[str] = PROMPTS,
    num_answered: int | None = None,
    **options: Any,
) -> list[Reply]:
    with closing(opened(server, api=api, **options)) as judge:
        return judge.reply(
            prompts, decoding=decoding, on_progress=lambda _: None, num_answered=num_answered
        )


def reasons(replies: list[Reply], decoding: Decoding = PREDICATE) -> list[list[str | None]]:
    """Return why each answer of each reply is null."""
    return [
        [answer.null_reason for answer in read_answers(reply, decoding, min_label_mass=0.5)]
        for reply in replies
    ]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("decoding", [PREDICATE, SCORE], ids=["predicate", "score"])
def test_each_answer_is_that_of_its_question(api, decoding):
    """`/v1/decisions` gives names, and the stand-in has answers and levels in another order."""
    values = [0.0, 1.0] if decoding is PREDICATE else [0.0, 0.25, 0.5, 1.0]
    mass = 0.75 if api == "systemone" else 1.0
    with serving(HostileServer()) as server:
        replies = ask(server, api, decoding=decoding)
    for state, reply in zip(STATES, replies, strict=True):
        assert reply.usage == (300, 0, 3, 0)
        answers = read_answers(reply, decoding, min_label_mass=0.5)
        for text, answer in zip(TEXTS, answers, strict=True):
            true = probability(state, text)
            levels = [1 - true, true]
            if decoding is SCORE:
                levels = level_probabilities(state, text, 4)
            mean = sum(value * p for value, p in zip(values, levels, strict=True))
            assert answer.rating == values[levels.index(max(levels))]
            assert answer.expected_rating == pytest.approx(mean, abs=1e-12)
            assert answer.label_mass == pytest.approx(mass)
    assert len(server.bodies) == len(PROMPTS)


@pytest.mark.services
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("fault", "reason"), QUESTION_FAULTS.items())
@pytest.mark.parametrize("decoding", [PREDICATE, SCORE], ids=["predicate", "score"])
def test_a_question_without_an_answer_is_null_and_the_others_keep_theirs(
    api, fault, reason, decoding
):
    if (api, fault) == ("decisions", "little_mass"):
        reason = None  # this interface does not tell the mass
    with serving(HostileServer()) as server:
        expected = ask(server, api, decoding=decoding)
    with serving(HostileServer(fault=fault)) as server:
        replies = ask(server, api, decoding=decoding)
    assert reasons(replies, decoding) == [[None, reason, None]] * len(PROMPTS)
    for reply, whole_reply in zip(replies, expected, strict=True):
        assert reply.answers[::2] == whole_reply.answers[::2]
    assert server.num_requests[f"/v1/{api}"] == len(PROMPTS)  # nothing is asked again


@pytest.mark.services
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("fault", "times", "reason"),
    [
        *((fault, 10**9, ANSWERS[fault]) for fault in ("filtered_prompt", "invalid_prompt")),
        *((fault, 10**9, ANSWERS[fault]) for fault in ("error_in_200", "too_long")),
        *((fault, 1, None) for fault in ("429", "500", "half", "html", "another_model")),
        ("strange_key", 1, None),
        ("strange_key", 10**9, "unreadable_answer"),
        ("400", 10**9, "server_error"),
        ("echo_plain", 10**9, "content_filter"),
        ("echo_masked", 10**9, "content_filter"),
    ],
)
def test_a_request_that_fails_is_retried_or_null_in_all_its_questions(api, fault, times, reason):
    with serving(HostileServer(fault=fault, every=4, times=times)) as server:
        replies = ask(server, api, num_answered=50)
    assert {tuple(row) for row in reasons(replies)} == {(None,) * 3, (reason,) * 3}
    assert not any(KEY in f"{reply.text} {reply.answers}" for reply in replies)


@pytest.mark.parametrize(("api", "nums"), [("systemone", [64, 64, 2]), ("decisions", [130])])
def test_more_questions_than_a_request_may_have_take_several(api, nums):
    texts = [f"Statement {number}." for number in range(130)]
    with serving(HostileServer()) as server:
        [reply] = ask(server, api, prompts=[decision_prompt(STATES[0], texts)])
    assert [len(body["questions"]) for body in server.bodies] == nums
    assert (reply.num_calls, reply.usage.prompt_tokens) == (len(nums), 13_000)
    answers = read_answers(reply, PREDICATE, min_label_mass=0.5)
    expected = [probability(STATES[0], text) for text in texts]
    assert [answer.expected_rating for answer in answers] == pytest.approx(expected)


def test_a_failure_in_a_later_request_counts_what_the_earlier_ones_cost():
    prompt = decision_prompt(STATES[0], [f"Statement {number}." for number in range(70)])
    with serving(HostileServer(fault="strange_key", after=1, spared="Human: Hello.")) as server:
        [reply] = ask(server, "systemone", prompts=[prompt], num_answered=50, concurrency=1)
    # One request of 64 questions, two of 6 that cannot be read, and a test question of 1.
    assert reply.null_reason == "unreadable_answer"
    assert (reply.num_calls, reply.usage.prompt_tokens) == (4, 6400 + 2 * 600 + 100)


@pytest.mark.parametrize(
    ("true", "rating"), [(0.49, 0.0), (0.5, 1.0), (0.51, 1.0), (0.0, 0.0), (1.0, 1.0)]
)
def test_a_predicate_is_true_from_a_half_on(true, rating):
    logprobs = tuple(math.log(p) if p else -math.inf for p in (1 - true, true))
    reply = Reply(text="", is_complete=True, label_logprobs=logprobs)
    [answer] = read_answers(reply, replace(PREDICATE, num_scores=None), min_label_mass=0.5)
    assert (answer.rating, answer.expected_rating) == (rating, pytest.approx(true))
    # Of two levels of a score, or of two digits, the lower one is taken.
    score = replace(PREDICATE, num_scores=None, questions="score")
    [answer] = read_answers(reply, score, min_label_mass=0.5)
    assert answer.rating == (0.0 if true == 0.5 else rating)


def test_several_servers_share_the_requests_and_those_of_a_lost_one_go_to_the_others():
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(HostileServer())) for _ in range(2)]
        lost = stack.enter_context(serving(HostileServer(fault="503", after=3)))
        urls = ",".join(server.base_url for server in [*servers, lost])
        expected = ask(servers[0], "systemone")
        replies = ask(lost, "systemone", base_url=urls, prompts=PROMPTS)
    assert [reply.answers for reply in replies] == [reply.answers for reply in expected]
    assert all(server.num_requests["/v1/systemone"] for server in servers)


def test_the_bodies_ask_in_the_words_of_each_interface():
    options = {
        "system": "Be strict.",
        "chat_template_args": {"a": 1},
        "request_fields": {"user": "me"},
    }
    with serving(HostileServer()) as server:
        for api in APIS:
            for decoding in (PREDICATE, SCORE):
                prompts = [decision_prompt("A text.", ["It is kind."])]
                ask(server, api, decoding=decoding, prompts=prompts, **options)
    shared = {"model": MODEL, "user": "me", "chat_template_kwargs": {"a": 1}}
    state = {"state": "A text.", "instructions": "Be strict."}
    messages = [{"role": "system", "content": "Be strict."}, {"role": "user", "content": "A text."}]
    noul = {"type": "noul", "instructions": "It is kind."}
    predicate = {"name": "1", "type": "predicate", "instructions": "It is kind."}
    score = {"type": "score", "instructions": "It is kind."}
    labels = ["0.0", "0.25", "0.5", "1.0"]
    levels = [{"label": label} for label in labels]
    assert server.bodies == [
        shared | state | {"questions": {"1": noul}},
        shared | state | {"questions": {"1": score | {"criteria": labels}}},
        shared | {"input": messages, "questions": [predicate]},
        shared | {"input": messages, "questions": [{"name": "1", **score, "levels": levels}]},
    ]


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (HostileServer(key="another"), "answered 401"),
        (HostileServer(models=("other",)), "no such model"),
        (HostileServer(fault="501"), "not have the interface.*--api systemone is for decision"),
        (HostileServer(fault="wordy_question"), "does not answer a predicate: .*'high'"),
        (HostileServer(fault="quota"), "the quota"),
    ],
)
def test_a_server_that_answers_no_questions_is_refused_before_the_first_prompt(server, message):
    with (
        serving(server),
        closing(opened(server, api="systemone")) as judge,
        pytest.raises(JudgeUnavailableError, match=message) as caught,
    ):
        judge.check(PREDICATE)
    assert KEY not in str(caught.value)
    assert server.num_requests["/v1/systemone"] <= 1  # none of these passes


def test_a_decision_model_is_given_no_texts():
    with serving(HostileServer()) as server, closing(opened(server, api="decisions")) as judge:
        assert isinstance(judge, DecisionJudge)
        with pytest.raises(JudgeUnavailableError, match="it is a decision model"):
            judge.check(TEXT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "vllm"}, "--api systemone belongs to --backend http"),
        ({"tokenizer": "folder"}, "without --tokenizer"),
        ({"request_fields": {"questions": []}}, "cannot change questions"),
    ],
)
def test_options_that_a_decision_model_cannot_have_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        JudgeConfig(**{"model": "m", "backend": "http", "api": "systemone"} | options)


def test_an_error_of_every_request_ends_the_call():
    with (
        serving(HostileServer(fault="400", after=1)) as server,
        pytest.raises(EncoreError, match="answered 400"),
    ):
        ask(server, "systemone")
