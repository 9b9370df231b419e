"""Read a judge's verdict in its reply. A pure function: A, B, or the reason why there is none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from encore.judges.base import Reply

Place = Literal["A", "B"]
VerdictNullReason = Literal[
    "empty_reply", "no_verdict", "two_verdicts", "reply_cut_off", "prompt_too_long"
]

#: The reasons in words.
WORDS_OF_REASON: Mapping[VerdictNullReason, str] = {
    "empty_reply": "the reply is empty",
    "no_verdict": "neither [[A]] nor [[B]] in the reply",
    "two_verdicts": "both [[A]] and [[B]] in the reply",
    "reply_cut_off": "the token limit cut the reply off (give --max-reply-tokens a larger one, or "
    "let the judge explain itself: --protocol explained)",
    "prompt_too_long": "the prompt is too long for the judge's context and was not asked",
}

_VERDICT = re.compile(r"\[\[([AB])\]\]")

#: Part of a judging's identity: raise it whenever any reply would be read differently.
VERDICT_PARSER_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedVerdict:
    """Either the better answer's place or the reason why there is no verdict, never both."""

    place: Place | None
    null_reason: VerdictNullReason | None


def parse_verdict(reply: Reply | None) -> ParsedVerdict:
    """The verdict in a reply; None as a reply means that the prompt was too long to be asked.

    The reply may say anything around ``[[A]]`` or ``[[B]]`` and may repeat it. One that has both is
    no verdict: RewardBench's own reader takes ``[[A]]`` then, which favours the first place. A
    reply that the token limit cut off is none either, whatever it had said until then.
    """
    if reply is None:
        return _none("prompt_too_long")
    if not reply.is_complete:
        return _none("reply_cut_off")
    found = set(_VERDICT.findall(reply.text))
    if found == {"A"}:
        return ParsedVerdict(place="A", null_reason=None)
    if found == {"B"}:
        return ParsedVerdict(place="B", null_reason=None)
    if found:
        return _none("two_verdicts")
    return _none("no_verdict" if reply.text.strip() else "empty_reply")


def _none(reason: VerdictNullReason) -> ParsedVerdict:
    return ParsedVerdict(place=None, null_reason=reason)
