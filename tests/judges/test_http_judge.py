"""A judge on a server: passing faults are retried, lasting ones are named, no key is written."""

from __future__ import annotations

import json
import logging
import signal
import time
from dataclasses import replace
from pathlib import Path

import openai._base_client
import pytest
from pydantic import ValidationError

from encore.core.errors import EncoreError, JudgeUnavailableError
from encore.data.rating_runs import status
from encore.judges import http_server, open_judge
from encore.judges.base import Decoding, Reply, prompt_digest
from encore.judges.http_judge import HttpJudge
from encore.judges.judge_options import JudgeConfig
from encore.rating.reply_journal import ReplyJournal
from tests.golden.command_line import Finished, encore
from tests.judges.asking import interrupt_after_5
from tests.judges.hostile_server import (
    ANSWERS,
    ENDLESS,
    FAULTS,
    KEY,
    MODEL,
    QUOTAS,
    SLOW_SECONDS,
    HostileServer,
    serving,
)
from tests.signals import encore_process
from tests.worlds.judges import hashed_score, judge_and_server
from tests.worlds.servers import wait_until
from tests.worlds.studies import numbered_pairs, study_of

TEXT = Decoding(max_reply_tokens=16)
#: Faults that a prompt may cause itself, while the server answers other prompts.
#: Complete answers that cannot be read, and what else is set aside for one prompt alone.
UNREADABLE = ("html", "another_model", "error_inside", "error_choice", "large")
OF_ONE_PROMPT = ("500", *UNREADABLE)
#: `make test-services` has the others.
DEFAULT_FAULTS = ("500", "half", "html", "error_choice")
#: A fault of every fifth request, and the end of the error that names it.
LASTING_FAULTS = (
    ("429", "answered 429.*lower --concurrency"),
    ("busy_credit", "answered 402"),
    ("500", "answered 500"),
    ("half", "breaks the connection"),
    ("html", "does not answer as the OpenAI protocol says.*<html>"),
    ("another_model", "another model, 'another-judge' instead of 'some-judge'"),
    ("nothing", "breaks the connection"),
    ("half_chunked", "breaks the connection"),
    ("error_inside", "failed on request.*no 'choices'"),
    ("error_choice", "the model failed: .*broke off"),
    ("large", "it is longer than 8 MiB"),
    ("compressed", "it is longer than 8 MiB"),
    ("drip", "did not answer within 0.5 s.*--request-timeout-seconds"),
    ("slow", "did not answer within 2 s.*--request-timeout-seconds"),
)
GATEWAY_TEXT = "gateway-0123456789"
CHOICE = Decoding(kind="choice", max_reply_tokens=16, labels=("no", "yes"))
SCORES = replace(CHOICE, num_scores=10)
EXPECTED = Decoding(kind="expected", max_reply_tokens=16, labels=tuple("0123456789"))
QUESTIONS = [f"Question {number}?" for number in range(40)]
EXPECTED_TEXTS = [hashed_score(question) for question in QUESTIONS]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(http_server, "MAX_RETRIES", 1)
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)


def opened(server: HostileServer, **changes: object) -> HttpJudge:
    config = {"model": MODEL, "backend": "http", "base_url": server.base_url, **changes}
    judge = open_judge(*judge_and_server(config))
    assert isinstance(judge, HttpJudge)
    return judge


def ask(
    server: HostileServer, questions: list[str] = QUESTIONS, *, decoding: Decoding = TEXT, **changes
) -> list[Reply]:
    judge = opened(server, **changes)
    try:
        return judge.reply(questions, decoding=decoding, on_progress=lambda _: None)
    finally:
        judge.close()


def test_replies_have_the_order_of_their_prompts_and_token_counts():
    num_done: list[int] = []
    with serving(HostileServer()) as server:
        judge = opened(server, concurrency=8)
        judge.check(TEXT)
        sessions = [f"pair-{number // 4}" for number in range(len(QUESTIONS))]
        replies = judge.reply(
            QUESTIONS, decoding=TEXT, on_progress=num_done.append, sessions=sessions
        )
        judge.close()
    assert [reply.text for reply in replies] == EXPECTED_TEXTS
    assert {reply.usage for reply in replies} == {(100, 60, 4, 0)}
    assert server.sessions == {*sessions, ""}  # the probe has none
    assert (num_done[0], num_done[-1]) == (0, len(QUESTIONS))
    assert num_done == sorted(num_done)
    assert 2 <= server.most_at_once <= 8


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=() if fault in DEFAULT_FAULTS else pytest.mark.services)
        for fault in FAULTS
    ],
)
def test_requests_with_a_passing_fault_are_retried(fault):
    timeout = 3 if fault in ENDLESS else 30
    with serving(HostileServer(fault=fault, every=5, times=1)) as server:
        replies = ask(server, request_timeout_seconds=timeout)
    assert [reply.text for reply in replies] == EXPECTED_TEXTS
    assert server.num_requests["/v1/chat/completions"] > len(QUESTIONS)
    if fault in ("429", "busy_credit"):  # it says how long to wait
        assert min(server.waited) >= 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param(*row, marks=() if row[0] in DEFAULT_FAULTS else pytest.mark.services)
        for row in LASTING_FAULTS
    ],
)
def test_a_lasting_fault_is_named_with_its_host_and_without_the_key(fault, message):
    timeout = {"slow": 2, "drip": 0.5}.get(fault, 30)
    with serving(HostileServer(fault=fault, every=5)) as server:
        started = time.monotonic()
        with pytest.raises(EncoreError, match=message) as caught:
            ask(server, request_timeout_seconds=timeout)
        assert time.monotonic() - started < 120  # no request is waited for beyond its limit
    assert not isinstance(caught.value, JudgeUnavailableError)
    assert "127.0.0.1" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(("fault", "reason"), ANSWERS.items())
def test_a_reply_without_an_answer_is_null_with_its_reason(fault, reason):
    with serving(HostileServer(fault=fault, every=2)) as server:
        reasons = [reply.null_reason for reply in ask(server)]
    assert set(reasons) == {None, reason}
    assert server.num_requests["/v1/chat/completions"] == len(QUESTIONS)  # nothing is sent again


@pytest.mark.parametrize(
    ("server", "decoding", "message"),
    [
        (HostileServer(key="another"), TEXT, "answered 401.*OPENAI_API_KEY, which is set"),
        (HostileServer(models=("b", "a")), TEXT, "no such model; it has a, b"),
        (HostileServer(fault="another_model"), TEXT, "another model"),
        (HostileServer(fault="ignores_choice"), CHOICE, "ignores the choice.*structured_outputs"),
        (HostileServer(fault="ignores_choice"), SCORES, "ignores the choice.*give --decode text"),
        (HostileServer(fault="no_logprobs"), EXPECTED, "log-probabilities"),
    ],
)
def test_a_server_that_cannot_answer_is_refused_before_the_first_prompt(server, decoding, message):
    with serving(server):
        judge = opened(server)
        with pytest.raises(JudgeUnavailableError, match=message) as caught:
            judge.check(decoding)
        judge.close()
    assert KEY not in str(caught.value)


def test_decodings_choice_and_expected_are_requested_and_read():
    with serving(HostileServer()) as server:
        assert {reply.text for reply in ask(server, decoding=CHOICE)} == {"no", "yes"}
        for reply in ask(server, decoding=EXPECTED):
            assert reply.label_logprobs is not None
            assert reply.label_logprobs[int(reply.text)] == -0.25
            assert max(reply.label_logprobs) == -0.25  # the others are not among the best


@pytest.mark.parametrize("field", ["structured_outputs", "grammar", "response_format"])
def test_a_choice_is_asked_for_in_the_field_that_a_server_knows(field):
    """The server ignores the others; the second label is that with an odd number of letters."""
    with serving(HostileServer(fault="" if field == "structured_outputs" else field)) as server:
        judge = opened(server)
        judge.check(CHOICE)
        server.bodies.clear()
        replies = judge.reply(QUESTIONS, decoding=CHOICE, on_progress=lambda _: None)
        judge.close()
    assert {reply.text for reply in replies} <= {*CHOICE.labels}
    assert all(field in body for body in server.bodies)
    assert len(server.bodies) == len(QUESTIONS)


def test_the_body_that_a_server_receives_asks_for_greedy_replies():
    with serving(HostileServer()) as server:
        ask(server, ["Why?"])
    # 16 tokens are the limit of the decoding TEXT.
    limits = {"temperature": 0, "max_completion_tokens": 16}
    message = {"role": "user", "content": "Why?"}
    assert server.bodies == [{"model": MODEL, "messages": [message], **limits}]


def test_a_chat_has_the_system_message_and_the_arguments_of_the_template(tmp_path):
    (tmp_path / "system.txt").write_text("Be strict.")
    for system in ("Be strict.", str(tmp_path / "system.txt")):
        with serving(HostileServer()) as server:
            ask(server, ["Why?"], system=system, chat_template_args={"enable_thinking": False})
        [body] = server.bodies
        assert [message["content"] for message in body["messages"]] == ["Be strict.", "Why?"]
        assert body["messages"][0]["role"] == "system"
        assert body["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"system": "./no-such-file"}, "--system.*no-such-file"),
        ({"chat_template": "no.jinja", "tokenizer": "t"}, "--chat-template.*no.jinja"),
    ],
)
def test_a_file_of_the_chat_that_is_missing_is_named(options, message):
    with pytest.raises(JudgeUnavailableError, match=message):
        _ = JudgeConfig.model_validate({"model": MODEL, "backend": "http", **options}).chat


def test_a_chat_template_without_a_tokenizer_is_refused():
    with pytest.raises(ValidationError, match="--chat-template belongs to prompts"):
        JudgeConfig(model=MODEL, backend="http", chat_template=Path("t.jinja"))


def test_a_reply_that_is_cut_off_at_its_limit_is_no_complete_one():
    with serving(HostileServer(fault="cut_off", every=2)) as server:
        replies = ask(server)
    assert [reply.text for reply in replies] == EXPECTED_TEXTS
    assert {reply.is_complete for reply in replies} == {True, False}


def test_no_text_follows_a_redirect_to_another_server():
    with serving(HostileServer()) as other_server:
        redirecting = HostileServer(fault="redirect", redirect_url=other_server.base_url)
        message = r"answered 307.*redirects to another address; check --judge and --base-url"
        with serving(redirecting) as server, pytest.raises(JudgeUnavailableError, match=message):
            ask(server, ["Why?"])
    assert not other_server.num_requests
    assert server.num_requests.total() == 1


def test_choices_in_another_order_go_to_their_prompts_and_tokens_count_once(tiny_judge):
    prompts = [[1, number] for number in range(130)]
    with serving(HostileServer()) as server:
        judge = opened(server, tokenizer=str(tiny_judge))
        replies = judge.reply(prompts, decoding=TEXT, on_progress=lambda _: None)
        judge.close()
    assert [reply.text for reply in replies] == [hashed_score(str(prompt)) for prompt in prompts]
    # Requests of 33, 33, 33 and 31 prompts, each of which the server counts with 100 and 4 tokens.
    assert sum(reply.usage.prompt_tokens for reply in replies) == 4 * 100
    assert sum(reply.usage.output_tokens for reply in replies) == 4 * 4
    # A reply without a token would count in a budget as one whose tokens are unknown.
    assert {reply.usage.prompt_tokens for reply in replies} == {3, 4}
    assert [body["temperature"] for body in server.bodies if "max_tokens" in body] == [0] * 4


def test_fields_are_added_to_the_body_replaced_and_left_out():
    refused_fields = frozenset({"temperature", "max_completion_tokens"})
    with serving(HostileServer(refused_fields=refused_fields)) as server:
        with pytest.raises(EncoreError, match=r"answered 400: .*Unsupported parameter"):
            ask(server, ["Why?"])
        server.bodies.clear()
        fields = {"max_tokens": 20, "reasoning": {"effort": "low"}}
        [reply] = ask(server, ["Why?"], request_fields=fields, omit_fields=tuple(refused_fields))
    assert reply.text == hashed_score("Why?")
    [body] = server.bodies
    assert body == {"model": MODEL, "messages": body["messages"], **fields}


def test_headers_come_from_the_environment_and_are_shown_nowhere(monkeypatch):
    headers = {"X-Gateway-Key": "ENV:GATEWAY_KEY"}
    with serving(HostileServer(fault="500")) as server:
        monkeypatch.delenv("GATEWAY_KEY", raising=False)
        with pytest.raises(JudgeUnavailableError, match=r"X-Gateway-Key: .*GATEWAY_KEY is not set"):
            ask(server, headers=headers)
        monkeypatch.setenv("GATEWAY_KEY", GATEWAY_TEXT)
        with pytest.raises(EncoreError, match=r"failed on request with Bearer \[key\] \[key\]"):
            ask(server, ["Why?"], headers=headers)
    assert server.gateway_keys == {GATEWAY_TEXT}
    monkeypatch.setenv("GATEWAY_KEY", f"{GATEWAY_TEXT}\nX-Other: é")
    with pytest.raises(JudgeUnavailableError, match="GATEWAY_KEY is no line of ASCII") as caught:
        ask(server, headers=headers)
    assert GATEWAY_TEXT not in str(caught.value)


def test_an_object_of_scores_is_requested_as_a_json_schema():
    with serving(HostileServer()) as server:
        judge = opened(server)
        judge.check(SCORES)
        judge.close()
        # The server takes the first label for keys of two digits, and the second for the others.
        expected = {str(key): "yes" for key in range(1, 10)} | {"10": "no"}
        assert {reply.text for reply in ask(server, decoding=SCORES)} == {json.dumps(expected)}


def test_a_name_with_another_prefix_is_accepted_while_it_stays_the_same():
    with serving(HostileServer(fault="filtered_prompt", every=4)) as server:
        judge = opened(server, model="maker/some-judge")  # the server answers as some-judge
        server.models = ("maker/some-judge",)
        reasons = {
            reply.null_reason
            for reply in judge.reply(QUESTIONS, decoding=TEXT, on_progress=lambda _: None)
        }
        assert reasons == {None, "content_filter"}
        server.fault = "another_model"
        with pytest.raises(EncoreError, match=r"another model.*instead of 'some-judge'"):
            judge.reply(QUESTIONS, decoding=TEXT, on_progress=lambda _: None)
        judge.close()


def test_an_interruption_cancels_requests_and_the_next_call_replies():
    with serving(HostileServer(fault="slow", every=3)) as server:
        judge = opened(server)
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            judge.reply(QUESTIONS, decoding=TEXT, on_progress=interrupt_after_5)
        assert time.monotonic() - started < SLOW_SECONDS / 5  # no slow answer is waited for
        server.fault = ""
        replies = judge.reply(QUESTIONS[:5], decoding=TEXT, on_progress=lambda _: None)
        judge.close()
    assert [reply.text for reply in replies] == EXPECTED_TEXTS[:5]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base_url": f"http://{KEY}@host/v1"}, "OPENAI_API_KEY"),
        ({"base_url": f"http://host/v1?key={KEY}"}, "OPENAI_API_KEY"),
        ({"api_key_env": KEY}, "give the name, not the key"),
        ({"base_url": "host:8000"}, "expected http://HOST:PORT/v1"),
        ({"base_url": None}, "needs --base-url"),
        ({"engine_args": {"a": 1}}, "--engine-arg"),
        ({"backend": "vllm"}, "belongs to --backend http"),
        ({"headers": {"X-Key": KEY}}, "expected NAME=ENV:VARIABLE"),
        ({"headers": {f"X-Key: {KEY}": ""}}, "expected NAME=ENV:VARIABLE"),
        ({"request_fields": {"messages": []}}, "cannot change messages"),
        ({"omit_fields": ("prompt",)}, "cannot change prompt"),
        ({"request_fields": {"seed": 1}, "omit_fields": ("seed",)}, "seed is given to"),
        (
            {"backend": "vllm", "base_url": None, "omit_fields": ("seed",)},
            "belong to --backend http",
        ),
    ],
)
def test_invalid_options_are_refused_and_no_key_is_shown(changes, message):
    config = {"model": MODEL, "backend": "http", "base_url": "http://host/v1", **changes}
    with pytest.raises((ValueError, JudgeUnavailableError), match=message) as caught:
        open_judge(*judge_and_server(config))
    assert KEY not in str(caught.value)


def over(server: HostileServer) -> tuple[str, ...]:
    """Return the options that have a server's judge rate."""
    return ("--judge", MODEL, "--backend", "http", "--base-url", server.base_url)


def rate(study: Path, server: HostileServer, *options: object) -> Finished:
    return encore("rate", study, *over(server), "--shard-size", 5, *options)


def refuse_key(*texts: str, folder: Path) -> None:
    """Fail if the key is in a file or a text."""
    for path in folder.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
    assert not [text for text in texts if KEY in text]


def test_a_rating_run_names_the_host_and_warns_of_filters(tmp_path, caplog, capfd):
    study = study_of(numbered_pairs(6), tmp_path / "study")
    with serving(HostileServer(fault="content_filter", every=5)) as server:
        caplog.set_level(logging.DEBUG)
        finished = rate(study, server)
    assert finished.code == 0, finished.err
    assert "texts are sent to 127.0.0.1" in caplog.text
    assert "content_filter" in finished.err
    assert "safety data trigger filters" in finished.err
    [run] = status(study)
    assert run.manifest.identity["judge"]["revision"] == "127.0.0.1"
    assert run.total("num_ratings") + run.total("num_nulls") == 6 * 20
    assert (run.total("prompt_tokens"), run.total("computed_tokens")) == (12_000, 4_800)
    refuse_key(finished.out, finished.err, caplog.text, *capfd.readouterr(), folder=tmp_path)


@pytest.mark.services
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_asks_again_only_what_was_not_on_disk(number, tmp_path):
    study = study_of(numbered_pairs(20), tmp_path / "study")
    # Two requests at a time: a tenth of a second, after which a reply is on disk, is few of 400.
    options = ("--shard-size", 20, "--concurrency", 2)
    with serving(HostileServer()) as server:
        with encore_process("rate", study, *over(server), *options) as process:
            wait_until(lambda: server.num_asked.total() > 200, seconds=120, pause_seconds=0.01)
            process.send_signal(number)
            assert process.wait() == (-number if number == signal.SIGKILL else 130)
        [path] = study.glob("ratings/*/replies-00000.jsonl")
        kept = ReplyJournal.read(path, run_key=path.parent.name).earlier_replies.keys()
        assert len(kept) >= (50 if number == signal.SIGKILL else 200 - 2)  # two were on their way
        assert rate(study, server, *options).code == 0
    assert len(server.num_asked) == 400 + 1  # and the test question
    asked_twice = {prompt_digest(text) for text, count in server.num_asked.items() if count > 1}
    assert not kept & asked_twice
    undisturbed = study_of(numbered_pairs(20), tmp_path / "undisturbed")
    with serving(HostileServer()) as server:
        assert rate(undisturbed, server, *options).code == 0
    [name], [undisturbed_name] = (
        [path.name for path in folder.glob("ratings/*/shard-*")] for folder in (study, undisturbed)
    )
    assert name == undisturbed_name  # which holds the digest of the bytes
    assert not path.exists()


@pytest.mark.parametrize("fault", QUOTAS)
def test_a_request_whose_quota_is_spent_is_sent_once(fault):
    message = "the quota or the credit is spent"
    with (
        serving(HostileServer(fault=fault)) as server,
        pytest.raises(JudgeUnavailableError, match=message) as caught,
    ):
        ask(server, ["Why?"])
    assert server.num_requests.total() == 1
    assert KEY not in str(caught.value)


@pytest.mark.services
def test_a_spent_quota_ends_the_run_at_once_and_answers_are_kept(tmp_path):
    study = study_of(numbered_pairs(20), tmp_path / "study")
    options = ("--shard-size", 10, "--concurrency", 4)  # two shards of 200 prompts at a time
    with serving(HostileServer(fault="quota", after=101)) as server:
        finished = rate(study, server, *options)
        # The test question, 100 answers, and the open requests of both shards.
        assert 101 < server.num_requests["/v1/chat/completions"] <= 101 + 2 * 4
    assert finished.code == 1
    assert finished.err.count("quota or the credit is spent") == 1
    paths = sorted(study.glob("ratings/*/replies-*.jsonl"))
    journals = [ReplyJournal.read(path, run_key=path.parent.name) for path in paths]
    num_kept = sum(len(journal.earlier_replies) for journal in journals)
    assert 100 - 2 * 4 <= num_kept <= 100  # what was on its way is cancelled
    with serving(HostileServer()) as server:
        assert rate(study, server, *options).code == 0
    assert server.num_requests["/v1/chat/completions"] == 1 + 400 - num_kept


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("passes", [True, False], ids=["passes", "stays"])
def test_of_2000_calls_only_what_meets_a_lasting_fault_has_no_rating(
    fault, passes, tmp_path, caplog
):
    study = study_of(numbered_pairs(100), tmp_path / "study")
    timeout = 2 if fault in ENDLESS else 60
    caplog.set_level(logging.DEBUG)
    often = {"every": 100, "times": 1} if passes else {"every": 400}
    with serving(HostileServer(fault=fault, **often)) as server:
        finished = rate(study, server, "--request-timeout-seconds", timeout)
    num_hit = sum(map(server.is_hit, server.num_asked))
    assert num_hit > 0
    # A prompt that alone fails is set aside as null; else its shard fails.
    is_set_aside = not passes and fault in OF_ONE_PROMPT
    ends_well = passes or is_set_aside
    assert finished.code == (0 if ends_well else 3), finished.err
    # An answer with status 200 that cannot be read was paid for; other faults are the server's.
    reason = "unreadable_answer" if fault in UNREADABLE else "server_error"
    assert (f"{num_hit} ratings are null: {reason}" in finished.err) == is_set_aside
    assert not passes or server.num_requests["/v1/chat/completions"] > 2000
    [run] = status(study)
    failed = [shard.detail for shard in run.shards if shard.state == "failed"]
    assert (not failed, run.is_complete) == (ends_well, ends_well)
    assert all("some-judge" in detail and "127.0.0.1" in detail for detail in failed)
    with serving(HostileServer()) as server:  # on another port: the same run goes on
        retried = rate(study, server, *["--retry-failed-prompts"] * is_set_aside)
    assert retried.code == 0
    assert ", 0 nulls" in retried.err
    [run] = status(study)
    assert run.total("num_ratings") == 2000
    refuse_key(finished.out, finished.err, caplog.text, folder=tmp_path)
