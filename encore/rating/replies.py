"""Parse a judge's reply into a rating. A pure function: one number in [0, 1] or a reason."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Literal

NullReason = Literal[
    "empty_reply",
    "not_a_single_number",
    "out_of_range",
    "reply_cut_off",
    "prompt_too_long",
]

#: One ASCII decimal, perhaps ``Score:`` before it and a full stop after it. ``.5`` counts as a
#: number; signs, exponents, leading zeros, thousands separators, percent signs, fractions do not.
_NUMBER = r"((?:0|[1-9][0-9]*)(?:\.[0-9]+)?|\.[0-9]+)"
_SCORE = re.compile(rf"(?:score:\s*)?{_NUMBER}\.?", re.IGNORECASE | re.ASCII)
_NEGATIVE = re.compile(rf"(?:score:\s*)?-{_NUMBER}\.?", re.IGNORECASE | re.ASCII)
_CENT = Decimal("0.01")

#: Part of a run's identity: raise it whenever any reply would be read differently.
PARSER_VERSION = 1


def parse_reply(raw_reply: str) -> tuple[float | None, NullReason | None]:
    """The rating in a reply, rounded half-even to 2 decimals, or the reason why there is none.

    Only ASCII white space around the reply is ignored. Anything but a single number (``8/10``,
    ``0,8``, ``80 %``, two numbers, prose, other scripts' digits) is null, never a guess
    (paper notes, decision 5).
    """
    text = raw_reply.strip(" \t\r\n")
    if not text:
        return None, "empty_reply"
    match = _SCORE.fullmatch(text)
    if match is None:
        return None, "out_of_range" if _NEGATIVE.fullmatch(text) else "not_a_single_number"
    value = Decimal(match.group(1))
    if value > 1:
        return None, "out_of_range"
    return float(value.quantize(_CENT, rounding=ROUND_HALF_EVEN)), None
