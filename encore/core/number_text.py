"""How figures and texts read in the report: one way to write a number, nothing that hides."""

from __future__ import annotations

import math
import re

from encore.core.terminal import minus_signs

NONE = "–"
#: Control and direction characters, and what XML has no way to write: they are shown as escapes.
_UNPRINTABLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def printable(text: object) -> str:
    """A text from data on one line, its control and direction characters as visible escapes."""
    return _UNPRINTABLE.sub(lambda match: ascii(match.group())[1:-1], str(text))


def sentence(text: object) -> str:
    """A text as a sentence: a capital letter first, one full stop at the end."""
    words = minus_signs(printable(text)).rstrip(".")
    return f"{words[:1].upper()}{words[1:]}."


def number(value: float | None, *, digits: int = 3) -> str:
    """A figure; a dash where there is none, None or NaN. What rounds to 0 has no sign."""
    if value is None or math.isnan(value):
        return NONE
    return minus_signs(f"{round(value, digits) + 0.0:.{digits}f}")


def percent(value: float | None, *, digits: int = 1) -> str:
    """A share; a dash where there is none."""
    return NONE if value is None else f"{number(100 * value, digits=digits)} %"


def count(value: int) -> str:
    """A whole number with its thousands apart."""
    return f"{value:,}"


def plural(value: int, thing: str) -> str:
    """``1 pair``, ``2 pairs``."""
    return f"{count(value)} {thing}{'' if value == 1 else 's'}"


def interval(low: float | None, high: float | None, *, digits: int = 2) -> str:
    """Two ends; a dash where there are none."""
    if low is None or high is None:
        return NONE
    return f"{number(low, digits=digits)} to {number(high, digits=digits)}"


def percent_interval(low: float | None, high: float | None) -> str:
    """Two ends of an interval of a share."""
    if low is None or high is None:
        return NONE
    return f"{interval(100 * low, 100 * high, digits=1)} %"


def p_value(value: float | None) -> str:
    """A p-value to one digit."""
    return NONE if value is None else f"{value:.1g}"
