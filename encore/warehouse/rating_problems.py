"""Say what is wrong with a row of ratings, and what to do: the scale, the names of responses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from encore.core.errors import InputError
from encore.core.number_text import first_names
from encore.data.records import RESPONSES
from encore.data.schemas import RATINGS_CONTRACT
from encore.warehouse.queries import load_query

#: Ratings that lie so little outside [0, 1] are not on another scale.
_ROUNDING = 0.01
Fetch = Callable[[str], pa.Table]


def invalid_row_error(
    row: Mapping[str, Any],
    *,
    fetch: Fetch,
    label: str,
    scale: tuple[float, float] | None,
    is_wide: bool,
) -> InputError:
    """Return the error of a row that breaks the contract of ratings.

    Args:
        row: A row of ``invalid_ratings.sql``.
        fetch: Runs a query over the view ``ratings``.
        label: File or table of the row.
        scale: Ends of the scale that was named; None: the ratings are to be in [0, 1].
        is_wide: True for a table with a column for each rule.
    """
    low, high = scale or (0.0, 1.0)
    values = dict(row)
    if values["rating"] is not None and math.isfinite(values["rating"]):
        values["rating"] = low + values["rating"] * (high - low)  # as it is in the table
    problem, advice = values["problem"], "correct such rows (null means: no valid rating)"
    if problem.startswith("response") and values["response"] not in RESPONSES:
        advice = _response_advice(fetch)
    elif problem.startswith("rating") and math.isfinite(values["rating"]):
        problem, advice = _range_problem(fetch, low=low, high=high, is_wide=is_wide)
    text = ", ".join(f"{name} {values[name]!r}" for name in RATINGS_CONTRACT.names)
    return InputError(f"{label}: {problem} in the row with {text}; {advice}")


def _range_problem(fetch: Fetch, *, low: float, high: float, is_wide: bool) -> tuple[str, str]:
    """Return the problem of ratings outside their scale, and what to do."""
    ranges = fetch(load_query("rule_ranges")).to_pylist()
    ends_of_all = min(row["low"] for row in ranges), max(row["high"] for row in ranges)
    least, most = (low + end * (high - low) for end in ends_of_all)
    num_outside, num_ratings = (
        sum(row[name] for row in ranges) for name in ("num_outside", "num_ratings")
    )
    problem = f"{num_outside:,} of {num_ratings:,} ratings are not in [{low:g}, {high:g}], e.g."
    advice = f"ratings run from {least:g} to {most:g}"
    if least >= -_ROUNDING and most <= 1 + _ROUNDING:
        return problem, f"{advice}: round them to [0, 1]"
    ends = f"{math.floor(least)},{math.ceil(most)}"
    option = f"--scale{'=' if least < 0 else ' '}{ends}"  # a value may not begin with a hyphen
    return problem, (
        f"{advice}{_rules_outside(ranges, is_wide=is_wide)}; if that is their scale, name its ends "
        f"with {option} (in Python scale=({ends.replace(',', ', ')})), which maps it to [0, 1]; "
        "else correct them"
    )


def _rules_outside(ranges: Sequence[Mapping[str, Any]], *, is_wide: bool) -> str:
    """Return the rules that have all ratings outside the scale, unless every rule has some."""
    inside, outside = (
        [row["rule_id"] for row in ranges if (row["num_outside"] > 0) is is_outside]
        for is_outside in (False, True)
    )
    if not inside:
        return ""
    names = f", those outside under {first_names(outside, limit=3)} alone"
    if not is_wide:
        return names
    return f"{names} (if these columns are no rules: --rule-columns {','.join(inside)})"


def _response_advice(fetch: Fetch) -> str:
    """Return what to do about a column `response` with other values than the two."""
    rows = fetch(
        "select response, count(*) as num_rows from ratings group by 1 order by 2 desc, 1 limit 5"
    ).to_pylist()
    values = ", ".join(f"{row['response']!r} in {row['num_rows']:,}" for row in rows)
    return (
        f'found {values}; write "chosen" for the response that people preferred in each pair and '
        '"rejected" for the other; without preference labels call every response "chosen", each '
        "under a pair_id of its own: entropy needs no labels"
    )
