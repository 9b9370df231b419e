"""Answers that few clients expect: what is kept of them, what they cost, what is stored."""

from __future__ import annotations

import base64
import math
import re
from pathlib import Path

import openai._base_client
import pyarrow.parquet as pq
import pytest

from encore.core.errors import JudgeUnavailableError
from encore.data.rating_runs import status
from encore.judges import http_judge, http_protocol, http_server
from encore.judges.base import (
    END_UNKNOWN,
    SERVER_ERROR,
    TEXT_MENDED,
    UNREADABLE_ANSWER,
    USAGE_ESTIMATED,
    Reply,
    Usage,
)
from encore.judges.model_names import is_name_of
from encore.judges.redaction import Redactor
from encore.judges.server_options import ServerOptions
from encore.judges.token_usage import LearnedTokens, checked_usage, request_size
from tests.golden.command_line import encore
from tests.judges.hostile_server import KEY, ODD_USAGES, UNREADABLE, HostileServer, serving
from tests.judges.test_http_judge import EXPECTED, QUESTIONS, TEXT, ask, opened, rate
from tests.worlds.studies import numbered_pairs, study_of

pytestmark = pytest.mark.services

PROBE = http_judge._PROBE
CHAT = "/v1/chat/completions"
#: 10 pairs, two responses, ten rules.
NUM_PAIRS, NUM_PROMPTS = 10, 200
PRICES = ("--price-input", 3, "--price-output", 15)
#: Money that the server takes for each complete answer: 100 tokens of the prompt, 4 of the reply.
PRICE_OF_ANSWER = (3 * 100 + 15 * 4) / 1e6


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(http_server, "MAX_RETRIES", 1)
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)


def nulls_of(study: Path) -> list[str]:
    """Return the reasons of a study's nulls."""
    [run] = status(study)
    rows = [row for path in run.paths for row in pq.read_table(path).to_pylist()]
    return [row["null_reason"] for row in rows if row["rating"] is None]


def num_met(server: HostileServer, *faults: str) -> int:
    """Return the number of questions asked that met one of these faults."""
    return sum(server.lasting_fault_of(question) in faults for question in server.num_asked)


# --- a run with odd answers ---------------------------------------------------------------------

ALL = ("surrogate", *UNREADABLE, *ODD_USAGES)
#: All kinds in one run, and by themselves where there is time.
KINDS = [
    pytest.param(ALL, id="all"),
    *(pytest.param((kind,), id=kind, marks=pytest.mark.services) for kind in ALL),
]


@pytest.mark.parametrize("faults", KINDS)
def test_of_200_prompts_only_those_without_a_readable_answer_are_null(faults, tmp_path):
    study = study_of(numbered_pairs(NUM_PAIRS), tmp_path / "study")
    with serving(HostileServer(faults=faults, spared=PROBE)) as server:
        finished = rate(study, server, "--shard-size", 4)
        assert finished.code == 0, finished.err
        num_unreadable = num_met(server, *UNREADABLE)
        num_unstorable = num_met(server, "surrogate")
        num_odd = num_met(server, *ODD_USAGES)
        # Each unreadable answer is paid twice. Test questions are counted too, but not that of the
        # start, which no shard has.
        num_answers = server.num_requests[CHAT] - 1
        assert num_answers >= NUM_PROMPTS + num_unreadable
        assert rate(study, server, "--shard-size", 4).code == 0
        assert server.num_requests[CHAT] - 1 == num_answers  # nothing is paid again
    assert num_unreadable + num_unstorable + num_odd > 0
    assert sorted(nulls_of(study)) == sorted(
        [UNREADABLE_ANSWER] * num_unreadable + ["not_a_single_number"] * num_unstorable
    )
    [run] = status(study)
    assert run.total("num_calls") == num_answers
    remarks = [shard.counts.get("remarks", {}) for shard in run.shards]
    assert sum(counts.get(USAGE_ESTIMATED, 0) for counts in remarks) == num_odd
    assert sum(counts.get(TEXT_MENDED, 0) for counts in remarks) == num_unstorable
    assert (f"{num_odd} replies came without token counts" in finished.err) == (num_odd > 1)


@pytest.mark.parametrize("faults", KINDS)
def test_a_budget_holds_whatever_a_server_says(faults, tmp_path):
    study = study_of(numbered_pairs(2 * NUM_PAIRS), tmp_path / "study")
    budget = 0.5 * 2 * NUM_PROMPTS * PRICE_OF_ANSWER
    limits = (*PRICES, "--budget", budget, "--concurrency", 8)
    with serving(HostileServer(faults=faults, spared=PROBE)) as server:
        for _ in range(3):  # what is spent counts in the next calls
            finished = rate(study, server, "--shard-size", 4, *limits)
            assert finished.code == 3, finished.err
            assert "--budget" in finished.err
        # The test question of each command is not part of the budget.
        spent = (server.num_requests[CHAT] - 3) * PRICE_OF_ANSWER
    assert spent <= 1.02 * budget
    # What is said to be spent has upper estimates: 2 * 615 for 360 in the end, or for twice 360.
    assert spent - PRICE_OF_ANSWER <= float(re.search(r": (\S+) spent", finished.err)[1])
    assert spent >= (0.35 if faults == ALL else 0.6) * budget


def test_the_answers_before_a_readable_one_are_paid_too():
    with serving(HostileServer(fault="two_choices", every=4, times=1)) as server:
        replies = ask(server)
        num_hit = sum(map(server.is_hit, QUESTIONS))
    assert num_hit > 0
    # Each answer has 100 tokens of the prompt and 4 of the reply.
    assert sum(reply.num_calls for reply in replies) == len(QUESTIONS) + num_hit
    assert sum(reply.usage.prompt_tokens for reply in replies) == 100 * (len(QUESTIONS) + num_hit)
    assert sum(reply.usage.output_tokens for reply in replies) == 4 * (len(QUESTIONS) + num_hit)


def test_a_call_that_fails_passes_on_what_its_answers_cost():
    passed_on: list[Reply] = []
    with serving(HostileServer(fault="two_choices")) as server:
        judge = opened(server)
        with pytest.raises(http_protocol.UnreadableAnswerError, match="2 choices instead of one"):
            judge.reply(
                QUESTIONS[:1],
                decoding=TEXT,
                on_progress=lambda _: None,
                on_reply=lambda _, reply: passed_on.append(reply),
                num_answered=0,
            )
        judge.close()
        # Two answers to the prompt, and two to the test question.
        assert server.num_requests[CHAT] == 4
    [reply] = passed_on
    assert (reply.null_reason, reply.num_calls) == (SERVER_ERROR, 4)
    assert reply.usage[:1] + reply.usage[2:3] == (4 * 100, 4 * 4)


# --- the end of a reply -------------------------------------------------------------------------


def reply_that_ends(end: object, *, text: str = "0.5", **fields: object) -> Reply:
    choice = {"message": {"content": text}, "finish_reason": end, **fields}
    [reply] = http_protocol.read_chat({"choices": [choice]}, decoding=TEXT)
    return reply


@pytest.mark.parametrize(
    "end",
    [
        *("stop", "eos_token", "eos", "STOP", "end_turn", "stop_sequence", "COMPLETE", "done"),
        *("FINISH_REASON_STOP", "FinishReason.STOP", "tool_calls", "endoftext", "FINISHED"),
    ],
)
def test_a_reply_that_ends_by_itself_is_complete_in_the_words_of_every_service(end):
    reply = reply_that_ends(end)
    assert (reply.is_complete, reply.null_reason, reply.remarks) == (True, None, ())


@pytest.mark.parametrize(
    "end",
    [
        *("length", "LENGTH", "max_tokens", "MAX_TOKENS", "maxTokens", "model_length"),
        *("max_output_tokens", "token_limit", "ERROR_LIMIT", "FINISH_REASON_MAX_TOKENS"),
        *("model_context_window_exceeded", "maxPredictedTokensReached", "contextLengthReached"),
    ],
)
def test_a_reply_at_its_limit_is_cut_off_in_the_words_of_every_service(end):
    reply = reply_that_ends(end)
    assert (reply.is_complete, reply.null_reason, reply.remarks) == (False, None, ())


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        *((end, "content_filter") for end in ("content_filter", "content-filter", "SAFETY")),
        *((end, "content_filter") for end in ("ERROR_TOXIC", "guardrail_intervened", "SPII")),
        *((end, "content_filter") for end in ("content_filtered", "MODEL_ARMOR", "sensitive")),
        ("refusal", "refusal"),
    ],
)
def test_a_reply_that_a_filter_or_the_model_refuses_is_null_with_its_reason(end, reason):
    assert reply_that_ends(end, text="").null_reason == reason


@pytest.mark.parametrize("end", ["error", "abort", "cancelled", "insufficient_system_resource"])
def test_a_reply_that_the_server_broke_off_is_asked_for_again(end):
    with pytest.raises(http_protocol.UnreadableAnswerError, match="the model failed"):
        reply_that_ends(end)


@pytest.mark.parametrize(
    ("end", "remark"),
    [
        (None, END_UNKNOWN),
        ("something-new", f"{END_UNKNOWN} something-new"),
        (7, f"{END_UNKNOWN} 7"),
        ("x" * 99, f"{END_UNKNOWN} {'x' * 24}"),
    ],
)
def test_an_unknown_end_is_complete_and_counted(end, remark):
    reply = reply_that_ends(end)
    assert (reply.text, reply.is_complete, reply.remarks) == ("0.5", True, (remark,))


def test_an_answer_without_an_end_or_with_a_text_in_parts_is_read():
    parts = [{"type": "text", "text": "0."}, {"type": "thinking"}, {"type": "text", "text": "5"}]
    [reply] = http_protocol.read_chat({"choices": [{"message": {"content": parts}}]}, decoding=TEXT)
    assert (reply.text, reply.is_complete) == ("0.5", True)


@pytest.mark.parametrize(
    ("end", "is_complete"), [("stop", True), ("eos_token", True), (None, True), ("length", False)]
)
def test_the_ends_of_completions_mean_the_same(end, is_complete):
    answer = {"choices": [{"index": 0, "text": "0.5", "finish_reason": end}]}
    [reply] = http_protocol.read_completions(answer, decoding=TEXT, num_prompts=1, label_ids=())
    assert (reply.text, reply.is_complete) == ("0.5", is_complete)


# --- the name of the model ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "model", "is_same"),
    [
        ("gpt-4o-2024-11-20", "gpt-4o", True),
        ("openai/gpt-4o", "gpt-4o", True),
        ("openai/gpt-4o-2024-11-20", "gpt-4o", True),
        ("gpt-4o-2024-11-20", "openai/gpt-4o", True),
        ("azure/gpt-4o", "openai/gpt-4o", True),
        ("gpt-4", "gpt-4o", False),
        ("gpt-4o", "gpt-4", False),
        ("gpt-4o-mini", "gpt-4o", False),
        ("llama3.1", "llama3", False),
        ("gpt-4-0613", "gpt-4", True),
        ("gpt-4-1106-preview", "gpt-4", True),
        ("llama3:latest", "llama3", True),
        ("model@20241120", "model", True),
        ("my-gpt-4o", "gpt-4o", False),
        ("claude", "a/", False),
        (7, "7", False),
    ],
)
def test_a_name_with_a_prefix_or_a_date_is_the_judges(name, model, is_same):
    assert is_name_of(name, model) == is_same


def test_a_name_that_is_proposed_is_accepted_and_recorded_with_the_run(tmp_path):
    study = study_of(numbered_pairs(2), tmp_path / "study")
    with serving(HostileServer(fault="another_model")) as server:
        refused = rate(study, server)
        assert refused.code == 1
        assert "another model, 'another-judge' instead of 'some-judge'" in refused.err
        assert "add --served-model another-judge; else check --judge" in refused.err
        assert server.num_requests[CHAT] == 2  # the test question, and once more
        accepted = rate(study, server, "--served-model", "another-judge")
    assert accepted.code == 0, accepted.err
    assert "the server answered for some-judge as another-judge (40)" in accepted.err
    [run] = status(study)
    assert [shard.counts["answered_by"] for shard in run.shards] == [{"another-judge": 40}]
    assert run.manifest.identity["judge"]["engine_args"]["served_models"] == '["another-judge"]'


def test_a_name_that_cannot_be_typed_is_not_proposed():
    with serving(HostileServer(fault="another_model")) as server:
        judge = opened(server)
        answer = {"model": "evil\x1b[2J"}
        with pytest.raises(http_protocol.OtherModelError) as caught:
            judge._model.check_answer(answer)
        assert "--served-model" not in str(caught.value)
        assert "\x1b" not in str(caught.value)


def test_parameters_of_the_address_are_sent_with_every_request():
    with serving(HostileServer()) as server:
        judge = opened(server, base_url=f"{server.base_url}?api-version=2024-10-21&tag=a%20b&tag=c")
        judge.check(TEXT)
        judge.close()
    assert {*server.queries} == {"api-version=2024-10-21&tag=a%20b&tag=c"}
    assert len(server.queries) == 2  # the list of models, and the test question


@pytest.mark.parametrize(
    "parameter",
    [
        *(
            "api-key",
            "subscription-key",
            "apiKey",
            "access_token",
            "sig",
            "X-Amz-Signature",
            "code",
        ),
        *("SharedSecret", "jwt", "PASSWORD", "Ocp-Apim-Subscription-Key", "auth"),
    ],
)
def test_a_parameter_that_looks_like_a_secret_is_refused_by_its_name(parameter):
    url = f"https://host/v1?api-version=1&{parameter}=hunter22"
    with pytest.raises(JudgeUnavailableError, match=f"its parameter '{parameter}'") as caught:
        ServerOptions(base_url=url)
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize("parameter", ["v=sk-0123456789abcdef0123", "sk-0123456789abcdef0123"])
def test_a_parameter_with_a_secret_for_its_value_is_refused(parameter):
    with pytest.raises(JudgeUnavailableError, match="its parameter") as caught:
        ServerOptions(base_url=f"https://host/v1?{parameter}")
    assert "sk-0123456789" not in str(caught.value)


# --- probabilities of labels --------------------------------------------------------------------


def expected_reply(*entries: tuple[str, float]) -> Reply:
    """Return the reply of an answer that lists tokens with their probabilities."""
    top = [{"token": token, "logprob": math.log(share)} for token, share in entries]
    choice = {
        "message": {"content": entries[0][0]},
        "finish_reason": "length",
        "logprobs": {"content": [{"top_logprobs": top}]},
    }
    [reply] = http_protocol.read_chat({"choices": [choice]}, decoding=EXPECTED)
    return reply


def shares_of(reply: Reply) -> dict[str, float]:
    """Return the probabilities of the labels that have any."""
    assert reply.label_logprobs is not None
    shares = zip(EXPECTED.labels, map(math.exp, reply.label_logprobs), strict=True)
    return {label: pytest.approx(share) for label, share in shares if share > 0}


@pytest.mark.parametrize("second", ["7", " 7", "\u25817", "7\n", "\u01207"])
def test_the_probabilities_of_tokens_with_one_text_are_added(second):
    # 0.50 and 0.02 for the label 7, whichever of the two comes first.
    for entries in ([("7", 0.50), (second, 0.02)], [(second, 0.02), ("7", 0.50)]):
        reply = expected_reply(*entries, ("3", 0.1), ("no", 0.3))
        assert shares_of(reply) == {"7": 0.52, "3": 0.1}
        assert reply.text == "7"


def test_a_token_that_is_listed_twice_counts_once():
    assert shares_of(expected_reply(("7", 0.6), ("3", 0.1), ("7", 0.6))) == {"7": 0.6, "3": 0.1}


def test_rounded_probabilities_add_up_to_one_and_wrong_ones_are_refused():
    # 0.6 + 0.4 + 0.005 is one by rounding: all are divided by 1.005.
    reply = expected_reply(("7", 0.6), ("3", 0.4), (" 3", 0.005))
    assert shares_of(reply) == {"7": 0.6 / 1.005, "3": 0.405 / 1.005}
    with pytest.raises(http_protocol.UnreadableAnswerError, match=r"add up to 1\.2"):
        expected_reply(("7", 0.8), (" 7", 0.4))
    with pytest.raises(http_protocol.UnreadableAnswerError, match="no log-probability"):
        expected_reply(("7", 2.0))


def test_one_reply_without_log_probabilities_does_not_end_the_run(tmp_path):
    study = study_of(numbered_pairs(NUM_PAIRS), tmp_path / "study")
    with serving(HostileServer(faults=("no_logprobs",), spared=PROBE)) as server:
        finished = rate(study, server, "--decode", "expected", "--min-label-mass", 0.1)
        assert finished.code == 0, finished.err
        assert nulls_of(study) == [UNREADABLE_ANSWER] * num_met(server, "no_logprobs")


# --- token counts -------------------------------------------------------------------------------

#: A prompt of 100 bytes with a limit of 16 tokens: at most 50 and 16 tokens.
SIZE = request_size(["x" * 100], {"max_completion_tokens": 16})


@pytest.mark.parametrize(
    ("usage", "expected", "is_estimated"),
    [
        ({"prompt_tokens": 25, "completion_tokens": 4}, (25, 0, 4, 0), False),
        ({"prompt_tokens": 25.0, "completion_tokens": 4.0}, (25, 0, 4, 0), False),
        (None, (50, 0, 16, 0), True),
        ("none", (50, 0, 16, 0), True),
        ({"prompt_tokens": 0, "completion_tokens": 0}, (50, 0, 16, 0), True),
        ({"prompt_tokens": -1, "completion_tokens": 4}, (50, 0, 4, 0), True),
        ({"prompt_tokens": 25, "completion_tokens": -4}, (25, 0, 16, 0), True),
        ({"prompt_tokens": math.inf, "completion_tokens": 4}, (50, 0, 4, 0), True),
        ({"prompt_tokens": math.nan, "completion_tokens": 2.5}, (50, 0, 16, 0), True),
        ({"prompt_tokens": "25", "completion_tokens": True}, (50, 0, 16, 0), True),
        # A service may add a prompt of its own: 8,192 tokens more than bytes are believed.
        ({"prompt_tokens": 100 + 8192, "completion_tokens": 4}, (8292, 0, 4, 0), False),
        ({"prompt_tokens": 100 + 8193, "completion_tokens": 4}, (50, 0, 4, 0), True),
        ({"prompt_tokens": 25, "completion_tokens": 16 + 16}, (25, 0, 32, 0), False),
        ({"prompt_tokens": 25, "completion_tokens": 16 + 17}, (25, 0, 16, 0), True),
    ],
)
def test_token_counts_are_believed_if_they_are_possible(usage, expected, is_estimated):
    assert checked_usage({"usage": usage}, SIZE, text="0.5") == (Usage(*expected), is_estimated)


def test_thinking_counts_beyond_the_limit_and_cached_tokens_never_beyond_the_prompt():
    usage = {
        "prompt_tokens": 25,
        "completion_tokens": 404,
        "prompt_tokens_details": {"cached_tokens": 26},
        "completion_tokens_details": {"reasoning_tokens": 400},
    }
    assert checked_usage({"usage": usage}, SIZE, text="0.5") == (Usage(25, 0, 404, 400), False)


def test_the_estimate_is_closer_once_answers_told_the_servers_tokens():
    learned = LearnedTokens()
    prompts = ["x" * 100]
    for num_tokens in (8, 16, 8, 8, 8, 8, 8):
        learned.add(Usage(prompt_tokens=num_tokens), request_size(prompts, {}))
    assert request_size(prompts, {}, learned).max_prompt_tokens == 50  # seven tell too little
    learned.add(Usage(prompt_tokens=8), request_size(prompts, {}))
    # A quarter more than the 16 tokens of 100 bytes that were the most.
    assert request_size(prompts, {}, learned).max_prompt_tokens == 20
    assert request_size(["x" * 10], {}, learned).max_prompt_tokens == 2
    learned.add(Usage(prompt_tokens=90), request_size(prompts, {}))
    assert request_size(prompts, {}, learned).max_prompt_tokens == 50  # never more than before


def test_a_request_without_a_limit_is_bounded_by_its_text_alone():
    size = request_size(["x" * 100, [1, 2, 3]], {})
    # 50 tokens of the text and three ids; a reply of ten bytes has at most ten tokens.
    assert checked_usage({}, size, text="0123456789") == (Usage(53, 0, 10, 0), True)


# --- keys ---------------------------------------------------------------------------------------

REDACTOR = Redactor([KEY])
MASKS = (
    "***",
    "****************",
    "...",
    "\u2026",
    "xxxx",
    "[...]",
    "<hidden>",
    " ... ",
    "[REDACTED]",
)


def longest_part(text: str) -> int:
    """Return the length of the longest part of the key in a text."""
    lengths = range(len(KEY), 0, -1)
    return next(n for n in lengths if any(KEY[i : i + n] in text for i in range(len(KEY) - n + 1)))


@pytest.mark.parametrize("num_before", [0, 1, 150, 170, 180, 190, 199, 200, 400])
def test_no_part_of_a_key_is_left_wherever_a_text_is_cut(num_before):
    text = REDACTOR.text("-" * num_before + f" {KEY} and more")
    assert longest_part(http_protocol.first_words(text)) < 3
    for cut in range(8, len(KEY)):  # a server may cut its own text
        assert longest_part(REDACTOR.text("=" * num_before + KEY[:cut])) < 3
        assert longest_part(REDACTOR.text(KEY[-cut:] + "=" * num_before)) < 3


@pytest.mark.parametrize("mask", MASKS)
def test_a_masked_key_is_removed_with_its_visible_ends(mask):
    for num_head, num_tail in ((4, 0), (7, 4), (5, 2), (2, 2), (0, 4), (12, 6)):
        head, tail = KEY[:num_head], KEY[len(KEY) - num_tail :]
        text = REDACTOR.text(f"Incorrect API key: {head}{mask}{tail}. Find it at …")
        assert "[key]" in text
        assert longest_part(text) < 3, text


def test_an_encoded_key_is_removed():
    texts = [KEY.upper(), KEY.replace("-", "%2D"), KEY.encode().hex()]
    texts += [
        base64.b64encode(f"{user}:{KEY}".encode()).decode() for user in ("", "u", "us", "use")
    ]
    for text in texts:
        assert REDACTOR.text(f"Basic {text}").count("[key]") == 1, text
        assert len(REDACTOR.text(text)) < 20


def test_texts_without_a_key_stay_as_they_are():
    for text in ("0.5", "Rating: 0.7 ... done", "sk-", "no key *** here", "test-01"):
        assert REDACTOR.text(text) == text
    assert Redactor(["EMPTY", ""]).text("EMPTY *** EMPTY") == "EMPTY *** EMPTY"


@pytest.mark.parametrize("form", ["plain", "masked"])
def test_a_key_at_every_position_of_a_refusal_is_stored_nowhere(form, tmp_path, caplog):
    caplog.set_level("DEBUG")
    study = study_of(numbered_pairs(NUM_PAIRS), tmp_path / "study")
    with serving(HostileServer(fault=f"echo_{form}", spared=PROBE)) as server:
        finished = rate(study, server, "--allow-nulls")
        assert finished.code == 0, finished.err
        assert len(server.num_asked) == NUM_PROMPTS + 1
    [run] = status(study)
    texts = [finished.out, finished.err, caplog.text]
    for path in run.paths:
        texts += [str(value) for row in pq.read_table(path).to_pylist() for value in row.values()]
    texts.append(encore("sql", study, "select * from ratings", "--csv").out)
    texts += [
        path.read_text(errors="replace")
        for path in study.rglob("*")
        if path.is_file() and path.suffix != ".parquet"
    ]
    assert sum("[key]" in text for text in texts) >= NUM_PROMPTS / 2
    # The test of a text without any of it: the server's other words have two letters of it at most.
    assert max(map(longest_part_of_key, texts)) < 8


def test_a_reply_with_a_key_is_stored_without_it():
    with serving(HostileServer(fault="key_in_reply")) as server:
        for reply in ask(server):
            assert reply.text == "[key] is your key"


def longest_part_of_key(text: str) -> int:
    """Return 8 or more if a part of the key of that length is in a text, else 0."""
    parts = {KEY[start : start + 8] for start in range(len(KEY) - 7)}
    ends = {f"{KEY[:5]}*", f"*{KEY[-4:]}"}
    return 8 if any(part in text for part in parts | ends) else 0
