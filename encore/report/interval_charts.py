"""Figure: the rows of a benchmark's table with their 95 % intervals, as a study keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from encore.benchmarks.table import BenchmarkTable, TableLine
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


def interval_chart(table: BenchmarkTable) -> Chart:
    """One panel: a dot with its interval for each leading row, the best first.

    Leading are the paper's methods, models and judges. The table behind has every row.

    Args:
        table: With at least one row.
    """
    rows = sorted(table.own_rows, key=lambda row: -row.own.headline.score)
    reference = printable(table.reference)
    subsets = [one.subset for one in rows[0].own.subsets]
    columns = ("row", "score", "95 %", f"to {reference}, points", "95 % of it")
    return Chart(
        panels=(_intervals_panel(table, leading_rows(table)),),
        table=DataTable(
            columns=(*columns, *map(printable, subsets)),
            rows=tuple(_cells(row, subsets=subsets) for row in rows),
        ),
        columns=1,
    )


def leading_rows(table: BenchmarkTable) -> tuple[TableLine, ...]:
    """The rows that are drawn, the best first; all of them where none is leading."""
    rows = sorted(table.own_rows, key=lambda row: -row.own.headline.score)
    leading = [row for row in rows if row.own.method is not None or row.kind != "scheme"]
    return tuple(leading or rows)


def _intervals_panel(table: BenchmarkTable, rows: Sequence[TableLine]) -> Panel:
    names = [printable(row.name) for row in rows]
    reference = table.own_rows[0].own.headline

    def draw(axes: Axes) -> None:
        for place, row in enumerate(rows):
            found = row.own.headline
            tone = _tone(row)
            axes.plot([found.ci_low, found.ci_high], [place, place], color=tone)
            axes.plot(found.score, place, "o", color=tone, markersize=7.5)
        reference_line(axes, reference.score, "x")
        name_rows(axes, names)
        percent_axis(axes, "x")
        axes.set_xlabel(f"{printable(table.benchmark.headline)} (%)")

    scores = [row.own.headline.score for row in rows]
    return Panel(
        title="",
        subtitle=plural(reference.num_pairs, "pair")
        + (", PARTIAL" if table.benchmark.is_partial else ""),
        alt=(
            f"{plural(len(rows), 'row')} on {plural(reference.num_pairs, 'pair')}: from "
            f"{percent(min(scores))} to {percent(scores[0])} ({names[0]})."
        ),
        draw=draw,
        height=rows_height(len(rows)),
    )


def _tone(row: TableLine) -> str:
    """What the difference to the reference says, as a colour."""
    found = row.own.comparison
    if found is None:
        return "C2"
    if found.ci_low > 0:
        return "C0"
    return "C1" if found.ci_high < 0 else colour("muted")


def _cells(row: TableLine, *, subsets: Sequence[str]) -> tuple[str, ...]:
    headline, found, figures = row.own.headline, row.own.comparison, row.own.figures
    difference = NONE if found is None else points(found.difference, digits=1)
    ends = () if found is None else (found.ci_low, found.ci_high)
    return (
        printable(row.name),
        percent(headline.score),
        percent_interval(headline.ci_low, headline.ci_high),
        difference,
        " to ".join(points(end, digits=1) for end in ends) or NONE,
        *(percent(figures[name].score) if name in figures else NONE for name in subsets),
    )
