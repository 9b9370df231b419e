"""A judge that thinks: up to its mark or for a number of tokens, and then it answers.

The tiny judge writes ``abc</think>`` and then a score. The template opens the thinking.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from encore.core.errors import InputError, JudgeUnavailableError
from encore.data.rating_runs import ratings_of, run_status
from encore.data.study import open_study
from encore.judges import http_protocol, open_judge
from encore.judges.base import Decoding, Judge, Reply, Usage
from encore.judges.judge_options import JudgeConfig
from encore.rating.rating_options import PlanRateConfig, RatingConfig
from encore.rating.rating_plan import plan_rating
from encore.rating.rating_run import rate
from encore.rating.replies import read_reply
from tests.judges.asking import rating_prompts, replies_to
from tests.judges.hostile_server import KEY, MODEL, HostileServer, serving
from tests.judges.vllm_server import vllm_server, wait_until_ready
from tests.worlds.judges import judge_and_server
from tests.worlds.studies import numbered_pairs, study_of
from tests.worlds.tiny_judge import THINKING_MARKS, make_tiny_judge

TEXTS = rating_prompts(num_conversations=2)
DIGITS = tuple("0123456789")
TEXT = Decoding(max_reply_tokens=16, thinking_marks=THINKING_MARKS, think_tokens=9)
EXPECTED = replace(TEXT, kind="expected", labels=DIGITS)
CHOICE = replace(TEXT, kind="choice", labels=("0.1", "0.3", "0.5"))
#: By the decoding: text of the thinking, its tokens, tokens that are added behind it. A blank line
#: has two tokens. A mark that is not reached is added, one of two tokens is found.
THOUGHTS = {
    "its mark": (TEXT, "abc</think>", 4, 2),
    "its budget": (replace(TEXT, think_tokens=2), "ab</think>", 2, 3),
    "budget and mark": (replace(TEXT, think_tokens=4), "abc</think>", 4, 2),
    "a mark of two tokens": (replace(TEXT, thinking_marks=("x", "bc")), "abc", 3, 2),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judges") / "thinking"
    return make_tiny_judge(folder, max_model_len=2048, thinks=True)


def opened(folder: Path, backend: str = "transformers", **options: Any) -> Judge:
    return open_judge(JudgeConfig(model=str(folder), backend=backend, **options))


@pytest.fixture(scope="module")
def judge(folder: Path) -> Judge:
    return opened(folder)


def by_hand(judge: Judge, thinking: str, decoding: Decoding) -> list[Reply]:
    """Return the answers to prompts that have the thinking and a blank line at their end."""
    tokenizer = judge.tokenizer
    rendered = [tokenizer.render(text) + f"{thinking}\n\n" for text in TEXTS]
    one_step = replace(decoding, think_tokens=None)
    prompts = tokenizer.encode_text(rendered)
    return judge.reply(prompts, decoding=one_step, on_progress=lambda _: None)


@pytest.mark.parametrize("case", THOUGHTS)
def test_thinking_ends_with_its_mark_or_its_budget_and_every_token_is_counted(judge, case):
    decoding, thinking, num_thought, num_added = THOUGHTS[case]
    replies = replies_to(judge, TEXTS, decoding)
    prompts = judge.tokenizer.encode(TEXTS)
    answers = by_hand(judge, thinking, decoding)
    for reply, prompt, answer in zip(replies, prompts, answers, strict=True):
        assert reply.text == thinking + answer.text
        assert read_reply(reply, decoding, min_label_mass=0.5).rating == float(answer.text)
        assert reply.usage == Usage(
            # The second step reads the prompt again, with what stands before the answer.
            prompt_tokens=2 * len(prompt) + num_thought + num_added,
            output_tokens=num_thought + 4,  # "0", ".", a digit, the end
            thinking_tokens=num_thought,
        )
    assert len({reply.text for reply in replies}) > 1


def test_thinking_of_several_lengths_in_a_batch_is_counted_for_each(judge):
    """Prompts that end within the thinking have the remainder to write."""
    texts = [judge.tokenizer.render(TEXTS[0]) + begun for begun in ("", "a", "ab", "abc")]
    prompts = judge.tokenizer.encode_text(texts)
    for budget, num_thought in ((9, [4, 3, 2, 1]), (2, [2, 2, 2, 1])):
        decoding = replace(TEXT, think_tokens=budget)
        replies = judge.reply(prompts, decoding=decoding, on_progress=lambda _: None)
        assert [reply.usage.thinking_tokens for reply in replies] == num_thought
        for reply, start in zip(replies, range(4), strict=True):
            assert reply.text.startswith(f"{'abc'[start:][:budget]}</think>0.")


def test_labels_have_the_probabilities_that_they_have_after_the_thinking(judge):
    replies = replies_to(judge, TEXTS, EXPECTED)
    for reply, answer in zip(replies, by_hand(judge, "abc</think>", EXPECTED), strict=True):
        assert reply.label_logprobs == pytest.approx(answer.label_logprobs, abs=1e-5)
        assert reply.text == "abc</think>0"
        assert (reply.usage.output_tokens, reply.usage.thinking_tokens) == (5, 4)


def test_a_judge_that_is_told_not_to_think_answers_at_once(folder):
    """Without its mark it ends with a token that the second step does not read."""
    judge = opened(folder, chat_template_args={"enable_thinking": False})
    [prompt] = judge.tokenizer.encode(TEXTS[:1])
    [reply] = replies_to(judge, TEXTS[:1], replace(TEXT, think_tokens=None))
    assert re.fullmatch(r"0\.[1-9]", reply.text)
    assert reply.usage == Usage(prompt_tokens=len(prompt), output_tokens=4)
    [reply] = replies_to(judge, TEXTS[:1], TEXT)
    assert re.fullmatch(r"0\.[1-9]</think>0\.[1-9]", reply.text)
    added = 3 + 1 + 2  # the first score, the mark, a blank line
    tokens = Usage(prompt_tokens=2 * len(prompt) + added, output_tokens=8, thinking_tokens=4)
    assert reply.usage == tokens


def test_a_run_and_its_plan_have_the_tokens_of_the_thinking(folder, tmp_path):
    """The thinking of a call takes 4 of at most 9 tokens; the plan counts 9, and 16 for a mark."""
    study = study_of(numbered_pairs(2), tmp_path / "study")
    options = {
        "judge": {"model": str(folder), "backend": "transformers"},
        "decode": "expected",
        "think_tokens": 9,
    }
    plan = plan_rating(open_study(study), PlanRateConfig.model_validate(options))
    assert plan.layouts["paper"].output_tokens == 40 * (9 + 1)
    assert "up to 360 of the output tokens are thinking, 9 a call" in " ".join(plan.notes)
    result = rate(study, RatingConfig.model_validate(options))
    assert result.report.computed("thinking_tokens") == 40 * 4
    assert result.report.computed("output_tokens") == 40 * 5
    prompts = result.plan["prompt_tokens"]
    assert prompts["planned"] - prompts["actual"] == 40 * (9 + 16 - 4 - 2)
    assert result.manifest.settings == {"decode": "expected", "think_tokens": 9}
    assert result.manifest.deviations == ("expected", "thinks for 9 tokens")
    assert {*ratings_of(run_status(result.run_dir), ["pair_id", "rule_id", "response"]).values()}
    with pytest.raises(InputError, match="think_tokens 2048: the judge's context of 2048"):
        rate(study, RatingConfig.model_validate(options | {"think_tokens": 2048}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strip_thinking": "think", "decode": "choice"}, "no room to think: give --think-tokens"),
        ({"think_tokens": 9, "decode": "expected"}, "give --tokenizer, if the server is vLLM"),
        (
            {"think_tokens": 9, "decode": "expected", "judge": {"api": "systemone"}},
            "a decision model writes nothing; leave it out",
        ),
    ],
)
def test_options_that_leave_no_room_are_refused_with_the_one_that_gives_it(options, message):
    judge = {"model": "m", "backend": "http", **options.get("judge", {})}
    with pytest.raises(ValueError, match=message):
        RatingConfig.model_validate({**options, "judge": judge})


# --- over HTTP ----------------------------------------------------------------------------------


def test_a_server_that_does_not_think_within_a_budget_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for fault in ("", "reasoning"):
        with serving(HostileServer(fault=fault)) as server:
            options = {"model": MODEL, "backend": "http", "base_url": server.base_url}
            with (
                closing(open_judge(*judge_and_server(options))) as judge,
                pytest.raises(JudgeUnavailableError, match=r"within a budget.*--reasoning-parser"),
            ):
                judge.check(TEXT)
            assert server.bodies[0]["thinking_token_budget"] == 9
            assert server.bodies[0]["max_completion_tokens"] == 9 + 16 + 16


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_an_answer_in_the_field_of_the_thinking_is_a_null_of_its_own(field):
    choice = {"message": {"content": None, field: "It is 0.5"}, "finish_reason": "length"}
    [reply] = http_protocol.read_chat({"choices": [choice]}, decoding=replace(TEXT, stop=""))
    assert (reply.null_reason, reply.text) == ("only_thinking", "It is 0.5")
    choice = {"message": {"content": "0.5", field: "Hm <think>"}, "finish_reason": "stop"}
    [reply] = http_protocol.read_chat({"choices": [choice]}, decoding=TEXT)
    assert reply.text == "Hm <think></think>0.5"
    assert read_reply(reply, TEXT, min_label_mass=0.5).rating == 0.5
    plain = Decoding(max_reply_tokens=16)
    [reply] = http_protocol.read_chat({"choices": [choice]}, decoding=plain)
    assert reply.text == "0.5"


# --- vLLM ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected_replies(judge: Judge) -> dict[str, list[Reply]]:
    """Return what transformers answers, by the kind of the decoding."""
    return {decoding.kind: replies_to(judge, TEXTS, decoding) for decoding in (TEXT, EXPECTED)}


def check_replies(
    judge: Judge, expected: dict[str, list[Reply]], *, sessions: Sequence[str] = ()
) -> None:
    """Compare replies and tokens in text and expected; of a choice, that it is on the scale."""
    for decoding in (TEXT, EXPECTED):
        replies = replies_to(judge, TEXTS, decoding, sessions=sessions)
        for reply, expected_reply in zip(replies, expected[decoding.kind], strict=True):
            assert reply.text == expected_reply.text
            if decoding is EXPECTED:
                assert reply.label_logprobs == pytest.approx(
                    expected_reply.label_logprobs, abs=1e-4
                )
        for name in ("prompt_tokens", "output_tokens", "thinking_tokens"):
            counts = (
                sum(getattr(reply.usage, name) for reply in of_judge)
                for of_judge in (replies, expected[decoding.kind])
            )
            assert len({*counts}) == 1, name
    for reply in replies_to(judge, TEXTS, replace(CHOICE, think_tokens=2)):
        assert re.fullmatch(r"ab</think>0\.[135]", reply.text)


@pytest.mark.services
def test_vllm_thinks_and_answers_as_transformers_does(folder, expected_replies):
    with closing(opened(folder, "vllm")) as engine:
        check_replies(engine, expected_replies)
        cached = [reply.usage.cached_tokens for reply in replies_to(engine, TEXTS, TEXT)]
        assert min(cached) > 150  # the second step finds the prompt in the cache
        told_not_to = opened(folder, "vllm", chat_template_args={"enable_thinking": False})
        prompts = told_not_to.tokenizer.encode(TEXTS[:5])
        at_once = replace(TEXT, think_tokens=None)
        for reply in engine.reply(prompts, decoding=at_once, on_progress=lambda _: None):
            assert re.fullmatch(r"0\.[1-9]", reply.text)
            assert (reply.usage.output_tokens, reply.usage.thinking_tokens) == (4, 0)


@pytest.fixture(scope="module")
def server_url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "log"
    with vllm_server(folder, log, "--reasoning-parser", "qwen3") as (url, process):
        wait_until_ready(url, process)
        yield f"{url}/v1"


@pytest.mark.services
def test_a_server_with_token_ids_thinks_and_answers_as_transformers_does(
    folder, server_url, expected_replies
):
    options = {"model": folder.name, "backend": "http", "base_url": server_url}
    sessions = [str(number // 10) for number in range(len(TEXTS))]
    with closing(open_judge(*judge_and_server(options | {"tokenizer": str(folder)}))) as judge:
        check_replies(judge, expected_replies, sessions=sessions)


@pytest.mark.services
def test_a_chat_of_a_server_with_a_parser_thinks_in_one_request(folder, server_url):
    options = {"model": folder.name, "backend": "http", "base_url": server_url}
    with closing(open_judge(*judge_and_server(options))) as judge:
        for decoding, label in ((TEXT, "[1-9]"), (CHOICE, "[135]")):
            for num_tokens, thinking in ((9, "abc"), (2, "ab")):
                asked = replace(decoding, think_tokens=num_tokens)
                for reply in replies_to(judge, TEXTS[:5], asked):
                    assert re.fullmatch(rf"{thinking}</think>0\.{label}", reply.text)
                    assert reply.usage.thinking_tokens == len(thinking)
                    # The mark, "0", ".", a digit, the end.
                    assert reply.usage.output_tokens == len(thinking) + 5
        short = Decoding(max_reply_tokens=2)  # the parser finds thinking alone
        assert {reply.null_reason for reply in replies_to(judge, TEXTS[:3], short)} == {
            "only_thinking"
        }
