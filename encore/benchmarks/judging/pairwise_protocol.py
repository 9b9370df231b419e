"""What a judge of two answers reads, one prompt for both orders, and how its reply is read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Literal

from encore.data.records import Message, PreferencePair, Role
from encore.judges.base import Reply
from encore.rating.prompts import render_conversation

Place = Literal["A", "B"]

#: The factors are RewardBench's, the wording is ours; safety is no factor of its own there.
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

#: How a judge is to answer, by protocol: the end of the prompt.
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
#: Part of a judging's identity: raise it whenever any reply would be read differently.
VERDICT_PARSER_VERSION = 1
#: What earlier versions called the criterion of a verdict. It was part of a judging's identity.
EARLIER_CRITERION = "overall"

_VERDICT = re.compile(r"\[\[([AB])\]\]")


def render_comparison(pair: PreferencePair, *, is_chosen_first: bool, protocol: str) -> str:
    """The prompt for one pair and order.

    Args:
        pair: The pair.
        is_chosen_first: Whether assistant A gave the chosen answer; the judge is not told.
        protocol: How to answer.
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
    return hashlib.sha256(_marked_prompt(protocol).encode()).hexdigest()


def prompt_digest_of_earlier_versions(protocol: str) -> str:
    """Return the digest that earlier versions gave to the same prompt.

    They hashed the prompt together with the name of the only criterion, twice.
    """
    prompt = f"{EARLIER_CRITERION}\n{_marked_prompt(protocol)}"
    return hashlib.sha256(hashlib.sha256(prompt.encode()).digest()).hexdigest()


def _marked_prompt(protocol: str) -> str:
    roles: tuple[Role, ...] = ("system", "assistant", "user")
    pair = PreferencePair(
        pair_id="0" * 32,
        source="probe",
        prompt=tuple(Message(role=role, content=f"<{role}>") for role in roles),
        chosen="<chosen>",
        rejected="<rejected>",
    )
    return render_comparison(pair, is_chosen_first=True, protocol=protocol)


def parse_verdict(reply: Reply | None) -> tuple[Place | None, str | None]:
    """The verdict in a reply, or the reason why there is none, never both.

    The reply may say anything around ``[[A]]`` or ``[[B]]`` and may repeat it. One that has both is
    no verdict: RewardBench's own reader takes ``[[A]]`` then, which favours the first place. A
    reply that the token limit cut off is none either, whatever it had said until then.

    Args:
        reply: None: the prompt was too long to be asked.
    """
    if reply is None:
        return None, "prompt_too_long"
    if reply.null_reason is not None:
        return None, reply.null_reason
    if not reply.is_complete:
        return None, "reply_cut_off"
    found = set(_VERDICT.findall(reply.text))
    if len(found) == 1:
        return found.pop(), None
    if found:
        return None, "two_verdicts"
    return None, "no_verdict" if reply.text.strip() else "empty_reply"
