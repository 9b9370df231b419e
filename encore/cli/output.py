"""Tables of the commands, how their cells show figures, and warnings that several commands have.

Rules are numbered 1…R as in the report, so that no name is broken over lines at 80 columns; a
legend under the tables has the names.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.columns import Columns
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from encore.demo import JUDGE_NAME
from encore.errors import StudyIncompleteError
from encore.terminal import minus_signs, out, print_json, say, visible, warn

if TYPE_CHECKING:
    from encore.rating_runs import RatingManifest
    from encore.warehouse import Ratings

_MIN_FIRST_COLUMN = 12
#: Between two columns, and for both edges together.
_GAP = 2
NOTHING = "–"
_WORD = re.compile(r"[^\W\d_]{3}")

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
            text = table.plain if isinstance(table, Text) else table
            out.print(minus_signs(text) if isinstance(text, str) else table)
    for note in notes:
        say(f"note: {minus_signs(note)}")
    if ratings is not None:
        exit_if_incomplete(ratings.num_missing_shards, ratings.num_shards)


def exit_if_incomplete(num_missing_shards: int, num_shards: int) -> None:
    """Say that planned shards are not in the figures.

    Raises:
        StudyIncompleteError: Some are missing.
    """
    if num_missing_shards:
        raise StudyIncompleteError(
            f"{num_missing_shards} of {num_shards} shards missing, damaged or failed and not in "
            "these figures; `encore status` lists them, `encore rate` with the same parameters "
            "rates exactly these"
        )


def warn_of_failures(failures: Mapping[int, str], num_shards: int) -> None:
    """Say which shards failed, and why.

    Raises:
        StudyIncompleteError: Some did.
    """
    for index, error in failures.items():
        say(f"shard {index}: {error}")
    if failures:
        raise StudyIncompleteError(
            f"{len(failures)} of {num_shards} shards failed; run the same command again for only "
            "these"
        )


def warn_of(*, notes: Iterable[str] = (), synthetic: Sequence[str] = ()) -> None:
    """Warnings about a result: what limits it, and what of it is synthetic."""
    for note in notes:
        warn(note)
    if synthetic:
        parts = ", ".join(synthetic)
        warn(f"synthetic: {parts}; read these figures as an example, not as evidence")


def warn_of_synthetic(ratings: Path, *, run: str | None) -> None:
    """A warning that names what is synthetic in the figures to come, if anything is."""
    from encore.synthetic import synthetic_in

    warn_of(synthetic=synthetic_in(ratings, run=run))


def warn_of_unused(given: Mapping[str, object], *, who: str, used: Collection[str] = ()) -> None:
    """Warn of every option that was given and changes nothing.

    Args:
        given: Values by option; None: not given.
        who: What does not read the others.
        used: The options that are read.
    """
    for name, value in given.items():
        if value is not None and name not in used:
            shown = f"{value:g}" if isinstance(value, float) else value
            warn(f"{who} has no use for --{name.replace('_', '-')} {shown}: it changes nothing")


def compact_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = ""
) -> Table:
    """A table without vertical rules that fits a narrow terminal.

    First cells are wrapped at hyphens, as rule ids have them, not in the middle of a word. Columns
    of figures stand to the right.
    """
    lines = [[visible(str(cell)) for cell in row] for row in rows]
    others = [*zip(columns, *lines, strict=True)][1:]
    width = out.width - sum(_GAP + max(map(len, column)) for column in others) - _GAP
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    table.pad_edge, table.padding = False, (0, 0, 0, 1)
    for name, *cells in zip(columns, *lines, strict=True):
        table.add_column(
            visible(name), justify="left" if any(map(_WORD.search, cells)) else "right"
        )
    wrap = textwrap.TextWrapper(max(width, _MIN_FIRST_COLUMN), break_long_words=False)
    for first, *line in lines:
        table.add_row("\n".join(wrap.wrap(first)), *line)
    return table


def record_table(records: Iterable[Any], cells: Cells, *, title: str = "") -> Table:
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
    return NOTHING if value is None else minus_signs(f"{round(value, digits) + 0.0:.{digits}f}")


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


def shown_judge(manifest: RatingManifest) -> str:
    """A run's judge by name; that of the demo has none but its folder's, ``judge``."""
    return JUDGE_NAME if manifest.synthetic else f"judge {manifest.judge}"


def counted(count: int, noun: str) -> str:
    """A number of things: ``1 shard``, ``2 shards``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
