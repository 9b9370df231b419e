"""Both engines answer alike; an interrupted one is rebuilt and answers as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from encore.config import JudgeConfig
from encore.data.records import Message
from encore.data.rules import load_rule_set
from encore.errors import GenerationInterruptedError
from encore.judges import open_judge
from encore.judges.base import Judge
from encore.rating.prompts import render_conversation, render_rating_prompt
from tests.tiny_judge import make_tiny_judge

NUM_CONVERSATIONS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_judge(tmp_path_factory.mktemp("judges") / "tiny", max_model_len=2048)


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    texts = [
        render_rating_prompt(
            render_conversation((Message(role="user", content=f"Why {index}?"),), "So " * index),
            rating_rule=rule.rating_rule,
        )
        for index in range(NUM_CONVERSATIONS)
        for rule in load_rule_set("encore-10").rules
    ]
    return open_judge(JudgeConfig(model=str(folder))).tokenizer.encode(texts)


@pytest.fixture(scope="module")
def vllm_judge(folder: Path):
    judge = open_judge(JudgeConfig(model=str(folder)))
    yield judge
    judge.close()


def ask(judge: Judge, prompts: list[list[int]]) -> list[str]:
    replies = judge.reply(prompts, max_reply_tokens=16, on_progress=lambda _: None)
    assert all(reply.is_complete for reply in replies)
    return [reply.text for reply in replies]


def test_vllm_and_transformers_give_the_same_replies(folder, prompts, vllm_judge):
    other = open_judge(JudgeConfig(model=str(folder), backend="transformers"))
    replies = ask(vllm_judge, prompts)
    assert ask(other, prompts) == replies
    assert len(set(replies)) >= 3


def test_replies_do_not_depend_on_order_or_company(prompts, vllm_judge):
    replies = ask(vllm_judge, prompts)
    assert ask(vllm_judge, prompts[::-1])[::-1] == replies
    assert ask(vllm_judge, prompts[7:8]) == replies[7:8]


def test_a_cut_off_reply_is_marked_as_incomplete(prompts, vllm_judge):
    [reply] = vllm_judge.reply(prompts[:1], max_reply_tokens=2, on_progress=lambda _: None)
    assert not reply.is_complete


@pytest.mark.parametrize("error", [GenerationInterruptedError, KeyboardInterrupt])
def test_an_interrupted_engine_is_replaced_and_the_next_call_answers(prompts, vllm_judge, error):
    before = ask(vllm_judge, prompts)

    def interrupt(num_done: int) -> None:
        if num_done >= 5:
            raise error("enough")

    with pytest.raises(error):
        vllm_judge.reply(prompts, max_reply_tokens=16, on_progress=interrupt)
    assert ask(vllm_judge, prompts) == before


def test_progress_counts_up_to_every_reply(prompts, vllm_judge):
    seen: list[int] = []
    vllm_judge.reply(prompts, max_reply_tokens=16, on_progress=seen.append)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0, len(prompts))
