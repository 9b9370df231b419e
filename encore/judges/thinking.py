"""The two steps of a judge that thinks: its thinking up to a closing mark, then its answer.

In the first step a judge writes freely, until its closing mark, its end or a number of tokens. The
mark is added if the judge has not written it, and a blank line, as chat templates write it. In the
second step it goes on from there and answers in the way of its decoding: text, choice or expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from encore.core.chat_tokenizer import ChatTokenizer
from encore.judges.base import Decoding, Prompt, Reply, total_usage

#: The error of a server that is asked for thinking and answer in one request.
NO_THINKING = (
    "returns no answer after thinking within a budget, which needs vLLM with --reasoning-parser "
    "over chat completions; give --tokenizer, if it is vLLM, or leave --think-tokens out and give "
    "more --max-reply-tokens"
)


class Thought(NamedTuple):
    """Thinking of a judge about one prompt.

    Attributes:
        reply: Reply of the first step: its text has the closing mark, its usage the tokens.
        prompt: Prompt of the second step: the first one, the thinking, the mark.
    """

    reply: Reply
    prompt: Sequence[int]


def thinking_step(decoding: Decoding) -> Decoding:
    """Return the way in which a judge thinks, before it answers in the way of ``decoding``."""
    assert decoding.think_tokens is not None, "the decoding has two steps"
    return Decoding(max_reply_tokens=decoding.think_tokens, stop=closing_mark(decoding))


def closing_mark(decoding: Decoding) -> str:
    """Return the mark at the end of the thinking."""
    assert decoding.thinking_marks is not None, "a judge that thinks has marks"
    return decoding.thinking_marks[1]


def thought_of(
    tokenizer: ChatTokenizer, prompt: Prompt, reply: Reply, decoding: Decoding
) -> Thought:
    """Return the thinking in a reply of the first step.

    The second step reads the tokens that the judge wrote, not those of their text.

    Args:
        tokenizer: Tokenizer of the judge.
        prompt: Prompt of the first step.
        reply: Reply of the first step, with its token ids. If the judge ended it without its
            mark, the last one is that of the end.
        decoding: Way in which the judge answers in the second step.
    """
    assert not isinstance(prompt, str), "a judge with a tokenizer reads token ids"
    mark, token_ids = closing_mark(decoding), list(reply.token_ids)
    is_closed = mark in _text_of(tokenizer, token_ids)
    if reply.is_complete and not is_closed:
        token_ids.pop()
    [added_ids] = tokenizer.encode_text(["\n\n" if is_closed else f"{mark}\n\n"])
    before_mark, _, _ = _text_of(tokenizer, token_ids).partition(mark)
    usage = reply.usage._replace(thinking_tokens=reply.usage.output_tokens)
    return Thought(
        reply=replace(reply, text=before_mark + mark, usage=usage),
        prompt=[*prompt, *token_ids, *added_ids],
    )


def thoughts_of(
    tokenizer: ChatTokenizer,
    prompts: Sequence[Prompt],
    replies: Sequence[Reply],
    decoding: Decoding,
) -> list[Thought]:
    """Return the thinking about each prompt; the arguments are those of `thought_of`."""
    pairs = zip(prompts, replies, strict=True)
    return [thought_of(tokenizer, prompt, reply, decoding) for prompt, reply in pairs]


def after_thinking(thought: Thought, answer: Reply) -> Reply:
    """Return the answer of the second step with the thinking before it, and the cost of both."""
    return replace(
        answer,
        text=thought.reply.text + answer.text,
        usage=total_usage([thought.reply.usage, answer.usage]),
        num_calls=thought.reply.num_calls + answer.num_calls - 1,
        remarks=(*thought.reply.remarks, *answer.remarks),
    )


def _text_of(tokenizer: ChatTokenizer, token_ids: Sequence[int]) -> str:
    """Return the text of some tokens; a mark may be a special token."""
    text: str = tokenizer.hf_tokenizer.decode(token_ids, skip_special_tokens=False)
    return text
