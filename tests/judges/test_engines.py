"""Both engines give the same replies; an interrupted engine is started again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from encore.data.records import Message
from encore.data.rule_sets import load_rule_set
from encore.judges import open_judge
from encore.judges.base import Decoding, Judge
from encore.judges.judge_config import JudgeConfig
from encore.rating.prompts import render_conversation, render_rating_prompt

NUM_CONVERSATIONS = 20


def render_prompts(*, num_conversations: int = NUM_CONVERSATIONS) -> list[str]:
    return [
        render_rating_prompt(
            render_conversation((Message(role="user", content=f"Why {index}?"),), "So " * index),
            rating_rule=rule.rating_rule,
        )
        for index in range(num_conversations)
        for rule in load_rule_set("encore-10").rules
    ]


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    return open_judge(JudgeConfig(model=str(folder))).tokenizer.encode(render_prompts())


def ask(judge: Judge, prompts: list[list[int]]) -> list[str]:
    replies = judge.reply(
        prompts, decoding=Decoding(max_reply_tokens=16), on_progress=lambda _: None
    )
    assert all(reply.is_complete for reply in replies)
    return [reply.text for reply in replies]


def test_vllm_and_transformers_give_the_same_replies(folder, prompts, vllm_judge):
    transformers_judge = open_judge(JudgeConfig(model=str(folder), backend="transformers"))
    replies = ask(vllm_judge, prompts)
    assert ask(transformers_judge, prompts) == replies
    assert len(set(replies)) >= 3


def test_replies_do_not_depend_on_order_or_batch_and_are_counted(prompts, vllm_judge):
    replies = ask(vllm_judge, prompts)
    assert ask(vllm_judge, prompts[::-1])[::-1] == replies
    seen: list[int] = []
    [reply] = vllm_judge.reply(
        prompts[7:8], decoding=Decoding(max_reply_tokens=2), on_progress=seen.append
    )
    assert not reply.is_complete
    assert replies[7].startswith(reply.text)
    vllm_judge.reply(prompts, decoding=Decoding(max_reply_tokens=16), on_progress=seen.append)
    assert seen[-1] == len(prompts)


def test_an_interrupted_engine_is_replaced_and_the_next_call_replies(prompts, vllm_judge):
    before = ask(vllm_judge, prompts)

    def interrupt(num_done: int) -> None:
        if num_done >= 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vllm_judge.reply(prompts, decoding=Decoding(max_reply_tokens=16), on_progress=interrupt)
    assert ask(vllm_judge, prompts) == before


def test_starting_an_engine_does_not_flush_the_log_handlers_of_the_process(
    folder, prompts, monkeypatch
):
    # A flow run's handler waits, when it is flushed, for threads that log: vLLM must not do that
    # while it holds the lock of all logging.
    flushed: list[str] = []

    class Handler(logging.Handler):
        def flush(self) -> None:
            flushed.append("flushed")

    handler = Handler()
    logging.getLogger().addHandler(handler)
    monkeypatch.setattr("vllm.logger._last_configured_logging_config", None)
    judge = open_judge(JudgeConfig(model=str(folder)))
    try:
        ask(judge, prompts[:1])
    finally:
        judge.close()
        logging.getLogger().removeHandler(handler)
    assert flushed == []
