"""Figure: the rows of a benchmark's table with their 95 % intervals, as a study keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from encore.benchmarks.stored_tables import StoredRow, StoredTable
from encore.report.drawing import (
    Chart,
    DataTable,
    Panel,
    colour,
    name_rows,
    percent_axis,
    reference_line,
    rows_height,
)
from encore.report.words import NONE, percent, percent_interval, plural, points, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def interval_chart(table: StoredTable) -> Chart:
    """One panel: a dot with its interval for each leading row, the best first.

    Leading are the paper's methods, models and judges. The table behind has every row.

    Args:
        table: With at least one row.
    """
    rows = sorted(table.rows, key=lambda row: -row.figures[table.headline][0])
    reference = printable(table.reference)
    subsets = [name for name in table.rows[0].figures if name != table.headline]
    columns = ("row", "score", "95 %", f"to {reference}, points", "95 % of it")
    return Chart(
        panels=(_intervals_panel(table, leading_rows(table)),),
        table=DataTable(
            columns=(*columns, *map(printable, subsets)),
            rows=tuple(_cells(row, headline=table.headline, subsets=subsets) for row in rows),
        ),
        columns=1,
    )


def leading_rows(table: StoredTable) -> tuple[StoredRow, ...]:
    """The rows that are drawn, the best first; all of them where none is leading."""
    rows = sorted(table.rows, key=lambda row: -row.figures[table.headline][0])
    leading = [row for row in rows if row.method is not None or row.kind != "scheme"]
    return tuple(leading or rows)


def _intervals_panel(table: StoredTable, rows: Sequence[StoredRow]) -> Panel:
    names = [printable(row.name) for row in rows]
    reference, figure = table.rows[0].figures[table.headline]

    def draw(axes: Axes) -> None:
        for place, row in enumerate(rows):
            score, found = row.figures[table.headline]
            tone = _tone(row)
            axes.plot([found.ci_low, found.ci_high], [place, place], color=tone)
            axes.plot(score, place, "o", color=tone, markersize=7.5)
        reference_line(axes, reference, "x")
        name_rows(axes, names)
        percent_axis(axes, "x")
        axes.set_xlabel(f"{printable(table.headline)} (%)")

    scores = [row.figures[table.headline][0] for row in rows]
    return Panel(
        title="",
        subtitle=plural(figure.num_pairs, "pair") + (", PARTIAL" if table.is_partial else ""),
        alt=(
            f"{plural(len(rows), 'row')} on {plural(figure.num_pairs, 'pair')}: from "
            f"{percent(min(scores))} to {percent(scores[0])} ({names[0]})."
        ),
        draw=draw,
        height=rows_height(len(rows)),
    )


def _tone(row: StoredRow) -> str:
    """What the difference to the reference says, as a colour."""
    if row.difference is None:
        return "C2"
    if row.difference.ci_low > 0:
        return "C0"
    return "C1" if row.difference.ci_high < 0 else colour("muted")


def _cells(row: StoredRow, *, headline: str, subsets: Sequence[str]) -> tuple[str, ...]:
    score, figure = row.figures[headline]
    found = row.difference
    difference = NONE if found is None else points(found.difference, digits=1)
    ends = () if found is None else (found.ci_low, found.ci_high)
    return (
        printable(row.name),
        percent(score),
        percent_interval(figure.ci_low, figure.ci_high),
        difference,
        " to ".join(points(end, digits=1) for end in ends) or NONE,
        *(percent(row.figures[name][0]) if name in row.figures else NONE for name in subsets),
    )
