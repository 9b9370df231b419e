"""What a judge of two answers reads: one prompt for both orders."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from encore.data.records import Message, PreferencePair, Role
from encore.rating.prompts import render_conversation

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

{criterion}

Stay impartial: which answer was shown first, how long it is and what the assistants are called \
must not count. There is no draw. {how_to_answer}"""

#: What verdicts are by, in tables and files.
CRITERION_ID = "overall"
#: The factors are RewardBench's, the wording is ours; safety is no factor of its own there.
_CRITERION = """\
The better answer is the one that does what the user wants and answers the question better. \
Consider how helpful, relevant, correct, thorough, creative and detailed each answer is."""
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

_PLACEHOLDER = re.compile(r"\{(conversation|answer_a|answer_b|criterion|how_to_answer)\}")


def render_comparison(pair: PreferencePair, *, is_chosen_first: bool, protocol: str) -> str:
    """The prompt for one pair and order.

    All placeholders are filled in a single pass, so text that happens to contain one stays as it
    is.

    Args:
        pair: The pair.
        is_chosen_first: Whether assistant A gave the chosen answer; the judge is not told.
        protocol: How to answer.
    """
    answers = (pair.chosen, pair.rejected)
    first, second = answers if is_chosen_first else answers[::-1]
    values: Mapping[str, str] = {
        # The turns before the answers, written as in a rating prompt.
        "conversation": render_conversation(pair.prompt, "").removesuffix("\n\nAssistant: "),
        "answer_a": first,
        "answer_b": second,
        "criterion": _CRITERION,
        "how_to_answer": HOW_TO_ANSWER[protocol],
    }
    return _PLACEHOLDER.sub(lambda match: values[match.group(1)], _TEMPLATE)


def prompt_digest(protocol: str) -> str:
    """SHA-256 of a prompt rendered from marked texts: part of a judging's identity."""
    roles: tuple[Role, ...] = ("system", "assistant", "user")
    pair = PreferencePair(
        pair_id="0" * 32,
        source="probe",
        prompt=tuple(Message(role=role, content=f"<{role}>") for role in roles),
        chosen="<chosen>",
        rejected="<rejected>",
    )
    prompt = render_comparison(pair, is_chosen_first=True, protocol=protocol)
    inner = hashlib.sha256(f"{CRITERION_ID}\n{prompt}".encode()).digest()
    return hashlib.sha256(inner).hexdigest()
