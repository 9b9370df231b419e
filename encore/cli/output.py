"""Print results of commands: tables, the text of their cells, and warnings.

Rules are numbered 1…R as in the report, so that tables fit 80 columns; a legend under the tables
has the names.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rich import box
from rich.columns import Columns
from rich.padding import Padding
from rich.table import Table

from encore.core import number_text
from encore.core.errors import StudyIncompleteError
from encore.core.number_text import NONE, first_names, number
from encore.core.terminal import minus_signs, out, print_json, say, visible, warn, wrapped

if TYPE_CHECKING:
    from encore.data.study_options import RatingsConfig
    from encore.warehouse import Ratings

#: A part of a command's output for people.
Renderable = Table | Padding | str

_MIN_FIRST_COLUMN = 10
#: Characters between two columns, and at both edges together.
_GAP = 2
#: Width of a column of rule numbers, with the edges of its table.
_NUMBER_COLUMN = 4
_WORD = re.compile(r"[^\W\d_]{3}")

#: Columns of a table by title: an attribute of the records, or a function of a record.
TableColumns = Mapping[str, str | Callable[[Any], object]]


def opened_ratings(config: RatingsConfig) -> Ratings:
    """Open the ratings that a command reads (`open_ratings`); warn of synthetic data in them."""
    from encore.warehouse import open_ratings

    ratings = open_ratings(
        config.ratings,
        run=config.run,
        judge=config.judge,
        rating=config.rating,
        **config.table_layout,
    )
    warn_of_synthetic(ratings.synthetic)
    return ratings


def show_result(
    result: Any,
    parts: Iterable[Renderable],
    notes: Iterable[str] = (),
    *,
    as_json: bool,
    synthetic: Sequence[str] = (),
    ratings: Ratings | None = None,
) -> None:
    """Print the result of a command as JSON or as tables and text, then notes and warnings.

    Args:
        result: The result as JSON values or records.
        parts: Tables and texts for people. A table without rows is left out.
        notes: Sentences that people read after the result.
        as_json: True prints JSON instead of the parts.
        synthetic: Names of synthetic inputs.
        ratings: Ratings that the result is computed from.

    Raises:
        StudyIncompleteError: Shards of the ratings' run are missing.
    """
    if as_json:
        print_json(result)
    for part in () if as_json else parts:
        if isinstance(part, str):
            out.print(wrapped(visible(minus_signs(part))), soft_wrap=True)
        elif not isinstance(part, Table) or part.rows:
            out.print(part)
    for note in dict.fromkeys((*notes, *(ratings.notes if ratings else ()))):
        say(f"note: {minus_signs(note)}")
    warn_of_synthetic(synthetic)
    if ratings is not None:
        exit_if_incomplete(
            ratings.num_missing_shards, ratings.num_shards, enough=ratings.sufficiency_note
        )


def exit_if_incomplete(num_missing_shards: int, num_shards: int, *, enough: str = "") -> None:
    """End the command with exit code 3 if planned shards are not in the figures.

    Args:
        num_missing_shards: Number of shards that are missing, damaged or failed.
        num_shards: Number of shards in the plan.
        enough: Why the missing shards are not needed, as a sentence; empty if they are.

    Raises:
        StudyIncompleteError: Shards are missing and needed.
    """
    if enough:
        say(f"note: {enough}")
    elif num_missing_shards:
        raise StudyIncompleteError(
            f"{num_missing_shards:,} of {num_shards:,} shards missing, damaged or failed and not "
            "in these figures; `encore status` lists them, `encore rate` with the same parameters "
            "rates exactly these"
        )


def warn_of_failures(failures: Mapping[int, str], num_shards: int) -> None:
    """Print the error of each failed shard.

    Raises:
        StudyIncompleteError: At least one shard failed.
    """
    for index, error in failures.items():
        say(f"shard {index}: {error}")
    if failures:
        raise StudyIncompleteError(
            f"{len(failures):,} of {num_shards:,} shards failed; run the same command again for "
            "only these"
        )


def warn_of_synthetic(parts: Sequence[str]) -> None:
    """Warn that figures come from synthetic data or judges."""
    if parts:
        warn(f"synthetic: {first_names(parts, limit=1)}; not evidence")


def warn_of_unused(options: Mapping[str, object], *, who: str, used: Collection[str] = ()) -> None:
    """Warn of every option that was set and changes nothing.

    Args:
        options: Values by the name of the option; None means that it was not set.
        who: The part that does not read the options, e.g. ``scheme uniform``.
        used: Names of the options that are read.
    """
    for name, value in options.items():
        if value is not None and name not in used:
            text = f"{value:g}" if isinstance(value, float) else value
            warn(f"{who} has no use for --{name.replace('_', '-')} {text}: it changes nothing")


def compact_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = ""
) -> Table:
    """Return a table without vertical rules that fits a narrow terminal.

    Cells of the first column are wrapped at hyphens, which rule ids have, not inside a word.
    Columns of figures are aligned to the right.
    """
    lines = [[visible(_cell(value)) for value in row] for row in rows]
    cells_by_column = [*zip(*lines, strict=True)] if lines else [()] * len(columns)
    needed = [max(map(len, column)) for column in zip(columns, *lines, strict=True)]
    if sum(needed) + _GAP * len(needed) > out.width:
        columns = [*map(_broken_name, columns, cells_by_column)]
        needed = [
            max(map(len, [*name.split("\n"), *cells]))
            for name, cells in zip(columns, cells_by_column, strict=True)
        ]
    width = out.width - sum(_GAP + num_characters for num_characters in needed[1:]) - _GAP
    table = Table(
        title=visible(title), title_justify="left", header_style="bold", box=box.SIMPLE_HEAD
    )
    table.pad_edge, table.padding = False, (0, 0, 0, 1)
    for name, *cells in zip(columns, *lines, strict=True):
        has_words = any(map(_WORD.search, cells))
        # Where there is too little room, words are wrapped and figures are not cut. The first
        # column is wrapped below.
        table.add_column(
            visible(name),
            justify="left" if has_words else "right",
            no_wrap=not has_words or not table.columns,
        )
    wrap = textwrap.TextWrapper(max(width, _MIN_FIRST_COLUMN), break_long_words=False)
    for first, *line in lines:
        table.add_row("\n".join(wrap.wrap(first)), *line)
    return table


def _broken_name(name: str, cells: Sequence[str]) -> str:
    """Return a column's name in lines that are no wider than its figures; as it is without any."""
    if any(map(_WORD.search, cells)) or not any(map(str.isdigit, "".join(cells))):
        return name
    return "\n".join(textwrap.wrap(name, max(map(len, cells)), break_long_words=False))


def column_tables(columns: Mapping[str, Iterable[str]], *, title: str) -> Iterator[Table]:
    """Yield columns of figures by rule number, in as many tables as the terminal's width needs."""
    group, width = dict[str, list[str]](), _NUMBER_COLUMN
    for name, values in columns.items():
        cells = [*values]
        column_width = _GAP + max(map(len, (name, *cells)))
        if group and width + column_width > out.width:
            yield _numbered_table(group, title=title)
            group, width, title = {}, _NUMBER_COLUMN, ""
        group[name] = cells
        width += column_width
    yield _numbered_table(group, title=title)


def _numbered_table(columns: Mapping[str, Sequence[str]], *, title: str) -> Table:
    rows = enumerate(zip(*columns.values(), strict=True), start=1)
    return compact_table(("#", *columns), [(n, *cells) for n, cells in rows], title=title)


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else number(value)


def record_table(records: Iterable[Any], columns: TableColumns, *, title: str = "") -> Table:
    """Return a table with a row for each record."""
    cell_of_column = [
        attrgetter(column) if isinstance(column, str) else column for column in columns.values()
    ]
    rows = [[cell_of(record) for cell_of in cell_of_column] for record in records]
    return compact_table(tuple(columns), rows, title=title)


def rule_table(
    rule_ids: Sequence[str], records: Iterable[Any], columns: TableColumns, *, title: str
) -> Table:
    """Return a table with a row for each record of a rule; a row begins with the rule's number."""
    numbered: TableColumns = {"#": lambda record: rule_ids.index(record.rule_id) + 1}
    return record_table(records, {**numbered, **columns}, title=title)


def rule_legend(rule_ids: Sequence[str]) -> Padding:
    """Return the ids of the rules with their numbers, several on a line where they fit."""
    width = len(str(len(rule_ids)))
    lines = [f"{n:>{width}} {visible(rule_id)}" for n, rule_id in enumerate(rule_ids, start=1)]
    return Padding(Columns(lines, equal=True), (0, 0, 1, 0))


def percent(value: float | None) -> str:
    """Return a share for a table, e.g. ``12.3%``; a dash for None."""
    return number_text.percent(value, unit="%")


def span(
    low: float | None, high: float | None, show: Callable[[float | None], str] = percent
) -> str:
    """Return an interval for a table, e.g. ``12.3%…45.6%``; a dash for None."""
    return NONE if low is None or high is None else f"{show(low)}…{show(high)}"


def percent_of(name: str) -> Callable[[Any], str]:
    """Return a column that shows a share in percent."""
    share = attrgetter(name)
    return lambda record: percent(share(record))


def span_of(name: str, show: Callable[[float | None], str] = percent) -> Callable[[Any], str]:
    """Return a column that shows the interval of an attribute ``NAME_low``, ``NAME_high``."""
    ends = attrgetter(f"{name}_low", f"{name}_high")
    return lambda record: span(*ends(record), show)


def estimate_of(name: str, show: Callable[[float | None], str] = number) -> Callable[[Any], str]:
    """Return a column that shows an `encore.analysis.bootstrap.Estimate`."""
    estimate_in = attrgetter(name)

    def cell(record: Any) -> str:
        estimate = estimate_in(record)
        interval = f" ({span(estimate.low, estimate.high, show)})"
        return show(estimate.value) + interval * (estimate.value is not None)

    return cell
