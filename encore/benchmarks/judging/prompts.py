"""What a judge of two answers reads: one prompt for both orders and every criterion."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from encore.data.records import Message, PreferencePair, RuleSet
from encore.errors import InputError
from encore.rating.prompts import render_conversation

#: The two answers stand before the criterion, so that an engine with prefix caching reads them once
#: for all criteria.
COMPARISON_TEMPLATE = """\
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

#: The factors are RewardBench's, the wording is ours; safety is no factor of its own there.
OVERALL_CRITERION = """\
The better answer is the one that does what the user wants and answers the question better. \
Consider how helpful, relevant, correct, thorough, creative and detailed each answer is."""

RULE_CRITERION = """\
Decide by the following rule alone, whatever else may be good or bad about the answers.

Rule: {rule}"""

_PLACEHOLDER = re.compile(r"\{(conversation|answer_a|answer_b|criterion|how_to_answer)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How a judge is to answer.

    Attributes:
        name: On the command line.
        how_to_answer: The end of the prompt.
        max_reply_tokens: A longer reply is cut off and gives no verdict.
    """

    name: str
    how_to_answer: str
    max_reply_tokens: int


#: RewardBench lets a judge explain itself before the verdict, in up to 2,048 tokens.
EXPLAINED = Protocol(
    name="explained",
    how_to_answer=(
        "First compare the answers in a few sentences. Then end with your verdict, written exactly "
        "so: [[A]] if the answer of assistant A is better, [[B]] if that of assistant B is."
    ),
    max_reply_tokens=2048,
)
#: A hundredth of the cost, and no reasoning.
VERDICT_ONLY = Protocol(
    name="verdict-only",
    how_to_answer=(
        "Reply with your verdict and nothing else: [[A]] if the answer of assistant A is better, "
        "[[B]] if that of assistant B is."
    ),
    max_reply_tokens=16,
)
PROTOCOLS: Mapping[str, Protocol] = {one.name: one for one in (EXPLAINED, VERDICT_ONLY)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """What answers are compared by: a name for tables and the text that the judge reads."""

    criterion_id: str
    text: str


OVERALL = Criterion(criterion_id="overall", text=OVERALL_CRITERION)


def rule_criteria(rule_set: RuleSet) -> tuple[Criterion, ...]:
    """One criterion a rule, made from its preference rule; in the rule set's order."""
    return tuple(
        Criterion(
            criterion_id=rule.rule_id, text=RULE_CRITERION.replace("{rule}", rule.preference_rule)
        )
        for rule in rule_set.rules
    )


def find_protocol(name: str) -> Protocol:
    """The protocol of a name.

    Raises:
        InputError: There is none of this name.
    """
    if name not in PROTOCOLS:
        raise InputError(
            f"judging protocol {name!r}: there is none of this name; expected one of "
            f"{', '.join(PROTOCOLS)}"
        )
    return PROTOCOLS[name]


def render_comparison(
    pair: PreferencePair, *, is_chosen_first: bool, criterion: Criterion, protocol: Protocol
) -> str:
    """The prompt for one pair, order and criterion.

    All placeholders are filled in a single pass, so text that happens to contain one stays as it
    is.

    Args:
        pair: The pair.
        is_chosen_first: Whether assistant A gave the chosen answer; the judge is not told.
        criterion: What to decide by.
        protocol: How to answer.
    """
    first, second = (
        (pair.chosen, pair.rejected) if is_chosen_first else (pair.rejected, pair.chosen)
    )
    values: Mapping[str, str] = {
        "conversation": _conversation(pair.prompt),
        "answer_a": first,
        "answer_b": second,
        "criterion": criterion.text,
        "how_to_answer": protocol.how_to_answer,
    }
    return _PLACEHOLDER.sub(lambda match: values[match.group(1)], COMPARISON_TEMPLATE)


def prompt_digest(protocol: Protocol, criteria: Sequence[Criterion]) -> str:
    """SHA-256 of prompts rendered from marked texts, one a criterion: part of a run's identity."""
    pair = PreferencePair(
        pair_id="0" * 32,
        source="probe",
        prompt=tuple(
            Message(role=role, content=f"<{role}>") for role in ("system", "assistant", "user")
        ),
        chosen="<chosen>",
        rejected="<rejected>",
    )
    digest = hashlib.sha256()
    for criterion in criteria:
        prompt = render_comparison(
            pair, is_chosen_first=True, criterion=criterion, protocol=protocol
        )
        digest.update(hashlib.sha256(f"{criterion.criterion_id}\n{prompt}".encode()).digest())
    return digest.hexdigest()


def _conversation(prompt: Sequence[Message]) -> str:
    """The turns before the answers, written as in a rating prompt."""
    return render_conversation(prompt, "").removesuffix("\n\nAssistant: ")
