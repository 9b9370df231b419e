"""Ask a judge in tests: prompts of the paper's form, and the replies to texts."""

from __future__ import annotations

from collections.abc import Sequence

from encore.data.records import Message
from encore.data.rule_sets import load_rule_set
from encore.judges.base import Decoding, Judge, ProgressHook, Reply
from encore.rating.prompts import render_conversation, render_rating_prompt


def rating_prompts(*, num_conversations: int) -> list[str]:
    """Return the prompts of each conversation under each of the ten rules."""
    return [
        render_rating_prompt(
            render_conversation((Message(role="user", content=f"Why {index}?"),), "So " * index),
            rating_rule=rule.rating_rule,
        )
        for index in range(num_conversations)
        for rule in load_rule_set("encore-10").rules
    ]


def replies_to(
    judge: Judge,
    texts: Sequence[str],
    decoding: Decoding,
    *,
    on_progress: ProgressHook = lambda _: None,
    sessions: Sequence[str] = (),
) -> list[Reply]:
    """Check a decoding, and return the judge's replies to texts."""
    judge.check(decoding)
    prompts = judge.tokenizer.encode(texts) if judge.tokenizer else texts
    return judge.reply(prompts, decoding=decoding, on_progress=on_progress, sessions=sessions)
