"""Prompt and reply of a judge that compares two answers, in either order."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Literal

from encore.data.records import Message, PreferencePair, Role
from encore.judges.base import Reply
from encore.rating.prompts import render_conversation

Position = Literal["A", "B"]

#: The factors are those of RewardBench, which has no factor safety. The wording is ours.
_TEMPLATE = """\
Two AI assistants answered the same conversation. Compare their answers and decide which one is \
better.

<conversation>
{conversation}
</conversation>

<answer of assistant A>
{answer_a}
</answer of assistant A>

<answer of assistant B>
{answer_b}
</answer of assistant B>

The better answer is the one that does what the user wants and answers the question better. \
Consider how helpful, relevant, correct, thorough, creative and detailed each answer is.

Stay impartial: which answer was shown first, how long it is and what the assistants are called \
must not count. There is no draw. {how_to_answer}"""

#: End of the prompt, by protocol: the form of the answer.
HOW_TO_ANSWER: Mapping[str, str] = {
    "explained": (
        "First compare the answers in a few sentences. Then end with your verdict, written exactly "
        "so: [[A]] if the answer of assistant A is better, [[B]] if that of assistant B is."
    ),
    "verdict-only": (  # a hundredth of the cost, and no reasoning
        "Reply with your verdict and nothing else: [[A]] if the answer of assistant A is better, "
        "[[B]] if that of assistant B is."
    ),
}
#: A longer reply is cut off and gives no verdict. RewardBench allows 2,048 tokens.
MAX_REPLY_TOKENS: Mapping[str, int] = {"explained": 2048, "verdict-only": 16}
#: Part of a judging's identity. Raise it when any reply would be read differently.
VERDICT_PARSER_VERSION = 1

_VERDICT = re.compile(r"\[\[([AB])\]\]")


def render_comparison(pair: PreferencePair, *, is_chosen_first: bool, protocol: str) -> str:
    """Return the prompt for one pair and order.

    Args:
        pair: Pair with the two answers.
        is_chosen_first: True if assistant A gave the chosen answer. The prompt does not show it.
        protocol: Form of the answer, a key of `HOW_TO_ANSWER`.
    """
    answers = (pair.chosen, pair.rejected)
    first, second = answers if is_chosen_first else answers[::-1]
    return _TEMPLATE.format(
        # The turns before the answers, written as in a rating prompt.
        conversation=render_conversation(pair.prompt, "").removesuffix("\n\nAssistant: "),
        answer_a=first,
        answer_b=second,
        how_to_answer=HOW_TO_ANSWER[protocol],
    )


def prompt_digest(protocol: str) -> str:
    """Return the SHA-256 of a prompt rendered from marked texts: part of a judging's identity."""
    roles: tuple[Role, ...] = ("system", "assistant", "user")
    pair = PreferencePair(
        pair_id="0" * 32,
        source="probe",
        prompt=tuple(Message(role=role, content=f"<{role}>") for role in roles),
        chosen="<chosen>",
        rejected="<rejected>",
    )
    prompt = render_comparison(pair, is_chosen_first=True, protocol=protocol)
    return hashlib.sha256(prompt.encode()).hexdigest()


def parse_verdict(reply: Reply | None) -> tuple[Position | None, str | None]:
    """Return the verdict in a reply, or the reason why it has none.

    The reply may have any text around ``[[A]]`` or ``[[B]]`` and may repeat it. A reply with both
    has no verdict: RewardBench's own parser takes ``[[A]]``, which favours the first position. A
    reply that the token limit cut off has no verdict either.

    Args:
        reply: Reply of the judge. None if the prompt was too long and not sent.
    """
    if reply is None:
        return None, "prompt_too_long"
    if reply.null_reason is not None:
        return None, reply.null_reason
    if not reply.is_complete:
        return None, "reply_cut_off"
    verdicts = set(_VERDICT.findall(reply.text))
    if len(verdicts) == 1:
        return verdicts.pop(), None
    if verdicts:
        return None, "two_verdicts"
    return None, "no_verdict" if reply.text.strip() else "empty_reply"
