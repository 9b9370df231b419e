"""Write numbers and texts from data as people read them: in tables, charts, pages and notes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from encore.core.terminal import minus_signs

#: Text in place of a missing number.
NONE = "–"
MINUS = "\N{MINUS SIGN}"
#: Control and direction characters, and characters that XML cannot hold.
_UNPRINTABLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def printable(text: object) -> str:
    """Return a text from data on one line, with control and direction characters as escapes."""
    return _UNPRINTABLE.sub(lambda match: ascii(match.group())[1:-1], str(text))


def sentence(text: object) -> str:
    """Return a text as a sentence, with a capital letter and one full stop."""
    line = minus_signs(printable(text)).rstrip(".")
    return f"{line[:1].upper()}{line[1:]}."


def number(value: float | None, *, digits: int = 3) -> str:
    """Return a number with a fixed count of decimals; a dash for None and NaN.

    A number that rounds to 0 has no sign.
    """
    if value is None or math.isnan(value):
        return NONE
    return minus_signs(f"{round(value, digits) + 0.0:.{digits}f}")


def significant(value: float | None, *, digits: int = 2) -> str:
    """Return a number with a few significant digits, as p-values need; a dash for None."""
    return NONE if value is None else minus_signs(f"{value:.{digits}g}")


def amount(value: float | None) -> str:
    """Return a count, or a measured amount with one decimal or two digits; a dash for None."""
    if value is None or isinstance(value, int):
        return NONE if value is None else count(value)
    return f"{value:,.1f}" if value >= 10 else f"{value:.2g}"


def count(value: int) -> str:
    """Return a whole number with commas between its thousands."""
    return f"{value:,}"


def first_names(names: Sequence[str], *, limit: int = 5) -> str:
    """Return the first names of a list and the number of the others: ``a, b and 2 more``."""
    num_more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {count(num_more)} more" if num_more > 0 else "")


def counted(value: int, noun: str) -> str:
    """Return a count with its noun: ``1 pair``, ``2,000 pairs``."""
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


def pairs_of_prompts(num_pairs: int, num_prompts: int | None) -> str:
    """Return the numbers of pairs and prompts: ``976 pairs of 244 prompts``.

    Without a number of prompts it says in half a line that pairs count as independent.
    """
    pairs = counted(num_pairs, "pair")
    if num_prompts is None:
        return f"{pairs}, taken as independent (no prompt_id)"
    return f"{pairs} of {counted(num_prompts, 'prompt')}"


def percent(value: float | None, *, digits: int = 1, unit: str = " %") -> str:
    """Return a share (0 to 1) in percent; a dash for None."""
    return NONE if value is None else f"{number(100 * value, digits=digits)}{unit}"


def points(share: float | None) -> str:
    """Return a difference of two shares in percentage points with its sign; a dash for None."""
    if share is None:
        return NONE
    text = f"{100 * share:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", MINUS)


def p_value(value: float | None) -> str:
    """Return a p-value with three decimals, or ``<0.001``; a dash for None."""
    if value is None:
        return NONE
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def interval(low: float | None, high: float | None, *, digits: int = 2) -> str:
    """Return both ends of an interval, e.g. ``0.12 to 0.34``; a dash for None."""
    if low is None or high is None:
        return NONE
    return f"{number(low, digits=digits)} to {number(high, digits=digits)}"


def percent_interval(low: float | None, high: float | None) -> str:
    """Return both ends of an interval of a share in percent; a dash for None."""
    if low is None or high is None:
        return NONE
    return f"{interval(100 * low, 100 * high, digits=1)} %"
