"""Tables with a row for each record, and how their cells show numbers.

Rules are numbered 1…R as in the report, so that no name is broken over lines at 80 columns; a
legend under the tables has the names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.columns import Columns
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table

from encore.cli.output import compact_table, exit_if_incomplete
from encore.terminal import out, print_json, say, visible

if TYPE_CHECKING:
    from encore.warehouse import Ratings

NOTHING = "–"
_MAX_EXACT_COUNT = 99_999

#: The columns of a table: what each is called, and what it shows of a record.
Cells = Mapping[str, Callable[[Any], object]]


def show_result(
    found: Mapping[str, Any],
    tables: Iterable[RenderableType],
    notes: Iterable[str],
    *,
    ratings: Ratings | None,
    as_json: bool,
) -> None:
    """Print what a command found in some ratings, as JSON or tables, then its notes.

    Raises:
        StudyIncompleteError: Shards of the ratings' run are missing.
    """
    if as_json:
        print_json(found)
    else:
        for table in tables:
            out.print(table)
    for note in notes:
        say(f"note: {note}")
    if ratings is not None:
        exit_if_incomplete(ratings.num_missing_shards, ratings.num_shards)


def record_table(records: Iterable[Any], cells: Cells, *, title: str) -> Table:
    """A table with a row for each record."""
    rows = [[show(one) for show in cells.values()] for one in records]
    return compact_table(tuple(cells), rows, title=title)


class NumberedRules:
    """The rules of some tables, in their order."""

    def __init__(self, rule_ids: Iterable[str]) -> None:
        self.number_of = {
            rule_id: str(number) for number, rule_id in enumerate(dict.fromkeys(rule_ids), start=1)
        }

    def table(self, records: Iterable[Any], cells: Cells, *, title: str) -> Table:
        """A table with a row for each record of a rule, which begins with the rule's number."""
        return record_table(
            records, {"#": lambda one: self.number_of[one.rule_id], **cells}, title=title
        )

    def legend(self) -> Padding:
        """The rules by number, several on a line where they fit."""
        wide = len(str(len(self.number_of)))
        entries = [f"{place:>{wide}} {visible(rule)}" for rule, place in self.number_of.items()]
        return Padding(Columns(entries, equal=True), (0, 0, 1, 0))


def number(value: float | None, *, digits: int = 3) -> str:
    """A figure for a table; a dash where there is none. What rounds to 0 has no sign."""
    return NOTHING if value is None else f"{round(value, digits) + 0.0:.{digits}f}"


def percent(value: float | None) -> str:
    """A share for a table; a dash where there is none."""
    return NOTHING if value is None else f"{number(100 * value, digits=1)}%"


def span(
    low: float | None, high: float | None, show: Callable[[float | None], str] = percent
) -> str:
    """An interval for a table."""
    return NOTHING if low is None or high is None else f"{show(low)}…{show(high)}"


def with_margin(
    value: float | None, low: float | None, high: float | None, *, digits: int = 3, scale: float = 1
) -> str:
    """A figure and half of its interval."""
    if value is None or low is None or high is None:
        return number(None if value is None else scale * value, digits=digits)
    half = scale * (high - low) / 2
    return f"{number(scale * value, digits=digits)} ±{number(half, digits=digits)}"


def short_count(number_of: int) -> str:
    """Exact up to five digits, then in thousands or millions."""
    if number_of <= _MAX_EXACT_COUNT:
        return str(number_of)
    return f"{number_of / 1e3:.0f}K" if number_of < 1e6 else f"{number_of / 1e6:.1f}M"


def counted(count: int, noun: str) -> str:
    """A number of things: ``1 shard``, ``2 shards``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
