"""Both engines give the same replies; an interrupted engine is started again."""

from __future__ import annotations

import logging

import pytest

from encore.core.errors import JudgeUnavailableError
from encore.judges import open_judge
from encore.judges.base import Decoding, Judge, ProgressHook, Reply
from encore.judges.judge_options import JudgeConfig
from encore.rating.reply_journal import JournalledJudge, ReplyJournal
from tests.judges.asking import interrupt_after_5, rating_prompts, replies_to

pytestmark = pytest.mark.services

TEXTS = rating_prompts(num_conversations=20)
DECODING = Decoding(max_reply_tokens=16)


def reply_texts(judge: Judge, texts: list[str]) -> list[str]:
    replies = replies_to(judge, texts, DECODING)
    assert all(reply.is_complete for reply in replies)
    return [reply.text for reply in replies]


def test_vllm_and_transformers_give_the_same_replies(folder, vllm_judge):
    transformers_judge = open_judge(JudgeConfig(model=str(folder), backend="transformers"))
    replies = reply_texts(vllm_judge, TEXTS)
    assert reply_texts(transformers_judge, TEXTS) == replies
    assert len(set(replies)) >= 3


def test_replies_do_not_depend_on_order_or_batch_and_are_counted(vllm_judge):
    replies = reply_texts(vllm_judge, TEXTS)
    assert reply_texts(vllm_judge, TEXTS[::-1])[::-1] == replies
    num_done: list[int] = []
    short = Decoding(max_reply_tokens=2)
    [reply] = replies_to(vllm_judge, TEXTS[7:8], short, on_progress=num_done.append)
    assert not reply.is_complete
    assert replies[7].startswith(reply.text)
    replies_to(vllm_judge, TEXTS, DECODING, on_progress=num_done.append)
    assert num_done[-1] == len(TEXTS)


def test_an_interrupted_engine_is_replaced_and_the_next_call_replies(vllm_judge):
    before = reply_texts(vllm_judge, TEXTS)
    with pytest.raises(KeyboardInterrupt):
        replies_to(vllm_judge, TEXTS, DECODING, on_progress=interrupt_after_5)
    assert reply_texts(vllm_judge, TEXTS) == before


@pytest.mark.parametrize("backend", ["vllm", "transformers"])
def test_replies_before_an_interruption_are_kept_and_not_asked_again(
    folder, vllm_judge, tmp_path, backend
):
    judge = vllm_judge
    if backend == "transformers":
        judge = open_judge(JudgeConfig(model=str(folder), backend=backend))
    prompts, path = judge.tokenizer.encode(TEXTS), tmp_path / "replies.jsonl"

    def ask(on_progress: ProgressHook) -> list[Reply]:
        journal = ReplyJournal.read(path, run_key="run")
        asked = JournalledJudge(judge=judge, journal=journal)
        replies = asked.reply(prompts, decoding=DECODING, on_progress=on_progress)
        assert len(journal.earlier_replies) + len(journal.new_replies) == len(set(TEXTS))
        return replies

    with pytest.raises(KeyboardInterrupt):
        ask(interrupt_after_5)
    num_done: list[int] = []
    assert [reply.text for reply in ask(num_done.append)] == reply_texts(judge, TEXTS)
    assert num_done[0] >= 5


def test_an_engine_argument_that_is_unknown_is_named_before_the_engine_starts(folder):
    judge = open_judge(JudgeConfig(model=str(folder), engine_args={"hf_override": {"a": 1}}))
    with pytest.raises(JudgeUnavailableError, match=r"'hf_override'.*did you mean hf_ov"):
        judge.start()


def test_starting_an_engine_does_not_flush_the_log_handlers_of_the_process(folder, monkeypatch):
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
        reply_texts(judge, TEXTS[:1])
    finally:
        judge.close()
        logging.getLogger().removeHandler(handler)
    assert flushed == []
