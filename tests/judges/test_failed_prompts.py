"""A prompt that keeps failing is set aside; a server that is away never makes a rating null."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import openai._base_client
import pyarrow.parquet as pq
import pytest

from encore.core.errors import EncoreError
from encore.data.rating_runs import status
from encore.judges import failed_prompts, http_judge, http_protocol, http_server
from encore.judges.base import SERVER_ERROR, UNREADABLE_ANSWER, Reply, Usage
from encore.judges.http_protocol import PromptFailedError
from encore.rating.reply_journal import ReplyJournal
from encore.rating.shard_rating import ShardRater
from encore.runs import shard_files
from tests.golden.command_line import encore
from tests.judges.hostile_server import KEY, HostileServer, serving
from tests.judges.test_http_judge import QUESTIONS, TEXT, opened, rate
from tests.worlds.judges import hashed_score
from tests.worlds.studies import numbered_pairs, study_of

pytestmark = pytest.mark.services

PROBE = http_judge._PROBE


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(http_server, "MAX_RETRIES", 1)
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)


def ask(
    server: HostileServer, questions: Sequence[str] = QUESTIONS, *, num_answered: int = 0, **options
) -> list[Reply]:
    judge = opened(server, **options)
    try:
        return judge.reply(
            questions, decoding=TEXT, on_progress=lambda _: None, num_answered=num_answered
        )
    finally:
        judge.close()


# --- refusals -----------------------------------------------------------------------------------

#: The status and the error of services that refuse a prompt for its content.
REFUSALS = {
    "OpenAI": (400, {"code": "invalid_prompt", "message": "Invalid prompt: flagged"}),
    "OpenAI, images": (400, {"code": "content_policy_violation"}),
    "Azure": (400, {"code": None, "innererror": {"code": "ResponsibleAIPolicyViolation"}}),
    "Alibaba": (400, {"code": "data_inspection_failed"}),
    "Alibaba, newer": (
        400,
        {"code": None, "message": "<400> InternalError.Algo.DataInspectionFailed: Input"},
    ),
    "DeepSeek": (400, {"code": "invalid_request_error", "message": "Content Exists Risk"}),
    "DeepSeek, older": (400, {"detail": "Content Exists Risk"}),
    "Volcengine": (400, {"code": "InputTextSensitiveContentDetected"}),
    "Zhipu": (400, {"code": "1301"}),
    "OpenRouter": (403, {"code": 403, "metadata": {"reasons": ["x"], "flagged_input": "y"}}),
    "xAI": (403, "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO"),
}


@pytest.mark.parametrize(("status_code", "error"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_of_the_content_is_an_answer(status_code, error):
    answer = http_protocol.answer_of_error(http_protocol.CHAT, status_code, error)
    [reply] = http_protocol.read_chat(answer, decoding=TEXT)
    assert reply.null_reason == "refused"


@pytest.mark.parametrize(
    ("status_code", "error"),
    [
        (400, {"code": "invalid_request_error", "message": "Unsupported value: temperature"}),
        (400, {"code": None, "message": "no answer to: Content Exists Risk"}),  # repeats the prompt
        (401, {"code": "invalid_api_key", "message": "Incorrect API key"}),
        (403, {"code": "permission-denied", "message": "Access to the chat endpoint is denied"}),
        (403, "no such team"),
        (429, {"code": "insufficient_quota"}),
        (500, {"code": "content_filter"}),
    ],
)
def test_another_error_is_no_refusal(status_code, error):
    assert http_protocol.answer_of_error(http_protocol.CHAT, status_code, error) is None


@pytest.mark.parametrize(
    ("status_code", "is_list"), [(404, True), (405, True), (501, True), (401, False)]
)
def test_a_server_without_a_list_of_models_has_an_empty_one(status_code, is_list):
    answer = http_protocol.answer_of_error(http_protocol.MODELS, status_code, "no such path")
    assert answer == ({"data": []} if is_list else None)


@pytest.mark.parametrize("end", ["content_filter", "SAFETY", "PROHIBITED_CONTENT", "sensitive"])
def test_an_answer_that_a_filter_stopped_is_null(end):
    answer = {"choices": [{"message": {"content": "0.5"}, "finish_reason": end}]}
    assert http_protocol.read_chat(answer, decoding=TEXT)[0].null_reason == "content_filter"


def test_an_answer_with_an_error_inside_is_asked_for_again():
    answer = {"choices": [{"message": {"content": ""}, "finish_reason": "error"}]}
    with pytest.raises(http_protocol.UnreadableAnswerError, match="the model failed"):
        http_protocol.read_chat(answer, decoding=TEXT)


def test_an_answer_that_its_limit_cut_off_is_not_complete():
    with serving(HostileServer(fault="cut_off")) as server:
        [reply] = ask(server, QUESTIONS[:1])
    assert reply.text == hashed_score(QUESTIONS[0])
    assert not reply.is_complete


def test_the_servers_count_of_thinking_is_read():
    usage = {"completion_tokens": 50, "completion_tokens_details": {"reasoning_tokens": 40}}
    choice = {"message": {"content": "0.5"}, "finish_reason": "stop"}
    [reply] = http_protocol.read_chat({"choices": [choice], "usage": usage}, decoding=TEXT)
    assert reply.usage == Usage(output_tokens=50, thinking_tokens=40)


# --- prompts that keep failing ------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["400", "500", "html"])
def test_a_prompt_that_keeps_failing_does_not_stop_the_others(fault):
    with serving(HostileServer(fault=fault, every=5, spared=PROBE)) as server:
        replies = ask(server)
        failed = [server.is_hit(question) for question in QUESTIONS]
    assert 0 < sum(failed) <= 10
    for question, reply, has_failed in zip(QUESTIONS, replies, failed, strict=True):
        if has_failed:
            is_paid = fault == "html"  # it has status 200
            assert reply.null_reason == (UNREADABLE_ANSWER if is_paid else SERVER_ERROR)
            assert KEY not in reply.text
            assert "some-judge" in reply.text
        else:
            assert reply.text == hashed_score(question)
        # An answer that is paid for is asked for once more. An error is met twice by the judge, and
        # each time the client sends the request again once, but not after a 400.
        num_times = {"html": 2, "400": 2 * 1, "500": 2 * 2}[fault]
        assert server.num_asked[question] == (num_times if has_failed else 1)
    if fault != "html":  # other answers tell that the server works
        assert server.num_asked[PROBE] == 2 * sum(failed)


@pytest.mark.parametrize("fault", ["429", "half", "nothing", "slow"])
def test_a_server_that_is_away_or_busy_is_no_fault_of_a_prompt(fault):
    timeout = 0.5 if fault == "slow" else 30
    with (
        serving(HostileServer(fault=fault, every=5, spared=PROBE)) as server,
        pytest.raises(EncoreError) as caught,
    ):
        ask(server, num_answered=10_000, request_timeout_seconds=timeout)
    assert not isinstance(caught.value, PromptFailedError)


@pytest.mark.parametrize("fault", ["400", "500"])
def test_a_server_that_breaks_down_during_the_call_sets_nothing_aside(fault):
    with (
        serving(HostileServer(fault=fault, after=20)) as server,
        pytest.raises(EncoreError, match=f"answered {fault}"),
    ):
        ask(server, num_answered=10_000, concurrency=4)


def test_a_passing_breakdown_sets_nothing_aside():
    # Each question fails twice, which with one retry is once for the judge. The test question is
    # answered, so the judge sends every question again.
    with serving(HostileServer(fault="500", times=2, spared=PROBE)) as server:
        replies = ask(server, QUESTIONS[:10])
    assert [reply.text for reply in replies] == [hashed_score(text) for text in QUESTIONS[:10]]


def test_a_mistake_that_every_prompt_meets_is_an_error_after_few_calls():
    questions = [f"Question {number}?" for number in range(500)]
    with (
        serving(HostileServer(fault="400", spared=PROBE)) as server,
        pytest.raises(PromptFailedError),
    ):
        ask(server, questions, concurrency=8)
    # With 8 on their way, at most 10 + 8 fail. Each is sent twice at most.
    assert server.num_asked.total() - server.num_asked[PROBE] <= 2 * (10 + 8)


def test_answers_of_earlier_calls_count_against_the_failed_prompts():
    with serving(HostileServer(fault="400", spared=PROBE)) as server:
        with pytest.raises(PromptFailedError):
            ask(server, QUESTIONS[:11], num_answered=10)
        replies = ask(server, QUESTIONS[:11], num_answered=11)
    assert {reply.null_reason for reply in replies} == {SERVER_ERROR}


def test_one_prompt_of_a_request_does_not_fail_the_others(monkeypatch):
    judge = opened(HostileServer(base_url="http://127.0.0.1:9/v1"))

    async def answer(request, *, max_answers=2):
        if "bad" in request.prompts:
            raise PromptFailedError("a list of prompts with a bad one")
        return [Reply(text=prompt, is_complete=True) for prompt in request.prompts]

    monkeypatch.setattr(judge, "_reply_to_batch", answer)
    counts = failed_prompts.PromptCounts(num_answered=0)
    sent = judge._reply_or_set_aside(http_judge.Request(None, ["a", "bad", "b"], TEXT), counts)
    with pytest.raises(StopIteration) as finished:
        sent.send(None)
    replies = finished.value.value
    assert [reply.null_reason for reply in replies] == [None, SERVER_ERROR, None]
    assert [replies[0].text, replies[2].text] == ["a", "b"]


@pytest.mark.parametrize(
    ("fault", "present", "absent"),
    [("400", "answered 400: ", "attempt"), ("500", r"answered 500 \(2 attempts\): ", "raise")],
)
def test_the_message_tells_how_often_was_asked(fault, present, absent):
    with (
        serving(HostileServer(fault=fault)) as server,
        pytest.raises(EncoreError, match=present) as caught,
    ):
        ask(server, QUESTIONS[:1])
    assert absent not in str(caught.value)
    assert ("--concurrency" in str(caught.value)) == (fault == "500")


# --- a run --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "reason", "num_pairs", "every"),
    [("500", SERVER_ERROR, 100, 97), ("invalid_prompt", "refused", 10, 10)],
)
def test_a_run_keeps_all_other_ratings_and_is_done(fault, reason, num_pairs, every, tmp_path):
    study = study_of(numbered_pairs(num_pairs), tmp_path / "study")
    with serving(HostileServer(fault=fault, every=every, spared=PROBE)) as server:
        first = rate(study, server, "--shard-size", 100)
        questions = server.num_asked.keys() - {PROBE}
        num_failed = sum(map(server.is_hit, questions))
        assert len(questions) == num_pairs * 2 * 10  # two responses, ten rules
        assert first.code == 0, first.err
        num_before = server.num_asked.total()
        assert rate(study, server, "--shard-size", 100).code == 0
        assert server.num_asked.total() == num_before
    assert f"{num_failed:,} ratings are null: {reason}" in first.err
    [run] = status(study)
    assert run.total("num_nulls") == num_failed > 10
    assert run.total("num_ratings") == len(questions) - num_failed
    [path] = run.paths
    nulls = pq.read_table(path, filters=[("null_reason", "!=", "")]).to_pylist()
    assert {row["null_reason"] for row in nulls} == {reason}
    assert {row["rating"] for row in nulls} == {None}
    assert not [row for row in nulls if KEY in row["raw_reply"]]


def test_a_shard_fails_with_its_journal_if_the_server_breaks_down(tmp_path: Path):
    study = study_of(numbered_pairs(20), tmp_path / "study")
    with serving(HostileServer(fault="500", after=200)) as server:
        finished = rate(study, server, "--shard-size", 20)
        assert finished.code == 3, finished.err
        [run] = status(study)
        assert run.count("failed") == 1
        assert [*run.run_dir.glob("replies-*")]
        server.fault = ""
        assert rate(study, server, "--shard-size", 20).code == 0
    [run] = status(study)
    assert (run.total("num_ratings"), run.total("num_nulls")) == (400, 0)


def test_a_shard_that_fails_keeps_no_failed_prompt_as_an_answer(tmp_path, monkeypatch):
    study = study_of(numbered_pairs(10), tmp_path / "study")
    with serving(HostileServer(fault="400", every=20, spared=PROBE)) as server:
        monkeypatch.setattr(ShardRater, "_shard_table", _fail)
        assert rate(study, server, "--shard-size", 10).code == 3
        [path] = study.glob("ratings/*/replies-*")
        journal = ReplyJournal.read(path, run_key=path.parent.name)
        num_failed = sum(map(server.is_hit, server.num_asked))
        assert num_failed > 0
        assert len(journal.earlier_replies) == 200 - num_failed
        assert SERVER_ERROR not in {r.null_reason for r in journal.earlier_replies.values()}


def _fail(*_: object, **_options: object) -> None:
    raise EncoreError("the disk was full")


# --- asking again -------------------------------------------------------------------------------

SMALL = ("--shard-size", 5)


def study_with_failed_prompts(folder: Path, server: HostileServer) -> tuple[Path, set[str]]:
    """Rate ten pairs in two shards; return the study and the questions that failed."""
    study = study_of(numbered_pairs(10), folder / "study")
    assert rate(study, server, *SMALL).code == 0
    failed = set(filter(server.is_hit, server.num_asked))
    assert len(failed) > 2
    server.num_asked.clear()
    return study, failed


def rows_of(study: Path) -> list[dict[str, object]]:
    [run] = status(study)
    return [row for path in run.paths for row in pq.read_table(path).to_pylist()]


def test_failed_prompts_are_asked_again_and_nothing_else(tmp_path):
    with serving(HostileServer(fault="400", every=20, spared=PROBE)) as server:
        study, failed = study_with_failed_prompts(tmp_path, server)
        [run] = status(study)
        # For each prompt that failed twice, the answers to two test questions.
        assert run.total("num_calls") == 200 + len(failed)
        server.fault = ""
        retried = rate(study, server, *SMALL, "--retry-failed-prompts")
        assert retried.code == 0, retried.err
        assert server.num_asked == dict.fromkeys([*failed, PROBE], 1)
        assert f"{200 - len(failed)} ratings are copies of those that were there" in retried.err
        undisturbed = study_of(numbered_pairs(10), tmp_path / "undisturbed")
        assert rate(undisturbed, server, *SMALL).code == 0
        assert rows_of(study) == rows_of(undisturbed)
        server.num_asked.clear()
        again = rate(study, server, *SMALL, "--retry-failed-prompts")
        assert "nothing is asked again" in again.err
        assert not server.num_asked
    [run] = status(study)
    assert len([*run.run_dir.glob("shard-*")]) == 2  # the old files are gone
    assert run.total("num_calls") == 200 + 2 * len(failed)


def test_a_retry_that_fails_changes_nothing(tmp_path):
    with serving(HostileServer(fault="400", every=20, spared=PROBE)) as server:
        study, failed = study_with_failed_prompts(tmp_path, server)
        before = rows_of(study)
        assert rate(study, server, *SMALL, "--retry-failed-prompts").code == 0
        assert rows_of(study) == before
        assert server.num_asked.keys() == failed | {PROBE}
        server.fault, server.every, server.spared = "nothing", 1, ""
        assert rate(study, server, *SMALL, "--retry-failed-prompts").code == 1  # the server is away
        assert rows_of(study) == before
        assert encore("status", study).code == 0


def test_a_retry_replaces_the_files_that_a_crash_of_another_one_left(tmp_path, monkeypatch):
    with serving(HostileServer(fault="400", every=20, spared=PROBE)) as server:
        study, _ = study_with_failed_prompts(tmp_path, server)
        server.fault = ""
        with monkeypatch.context() as crashing:
            crashing.setattr(shard_files, "publish", _publish_and_crash)
            assert rate(study, server, *SMALL, "--retry-failed-prompts").code == 3
        assert SERVER_ERROR in {row["null_reason"] for row in rows_of(study)}  # the older file
        assert rate(study, server, *SMALL, "--retry-failed-prompts").code == 0
    assert {row["null_reason"] for row in rows_of(study)} == {None}
    [run] = status(study)
    assert len([*run.run_dir.glob("shard-*")]) == 2


def _publish_and_crash(temporary: Path, path: Path) -> None:
    temporary.rename(path)
    raise EncoreError("killed")


def test_failed_prompts_are_shown_and_asked_in_a_larger_run(tmp_path):
    with serving(HostileServer(fault="400", every=20, spared=PROBE)) as server:
        study, failed = study_with_failed_prompts(tmp_path, server)
        listing = encore("status", study)
        assert f"null: {len(failed)} server_error" in listing.out + listing.err
        assert "--retry-failed-prompts" in listing.out + listing.err
        [run] = encore("status", study, "--json").json["runs"]
        assert run["null_reasons"] == {"server_error": len(failed)}
        server.fault = ""
        assert rate(study, server, "--shard-size", 4).code == 0  # another run
        assert server.num_asked == dict.fromkeys([*failed, PROBE], 1)


@pytest.mark.parametrize("options", [("--budget-calls", 100), ("--batch-file", "requests.jsonl")])
def test_a_retry_goes_with_no_limit_and_no_batch(options, tmp_path):
    study = study_of(numbered_pairs(1), tmp_path / "study")
    server = HostileServer(base_url="http://127.0.0.1:9/v1")
    finished = rate(study, server, "--retry-failed-prompts", *options)
    assert finished.code != 0
    assert "--retry-failed-prompts asks" in finished.err
