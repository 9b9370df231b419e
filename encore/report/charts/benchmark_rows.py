"""Figure: the rows of a benchmark's table with their 95 % intervals, as a study keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from encore.benchmarks.stored_tables import StoredRow, StoredTable
from encore.report.chart import Chart, DataTable, Panel
from encore.report.charts.axes import name_rows, padded, percent_axis, rows_height, tip, zero_line
from encore.report.palette import BLUE, GREEN, MUTED, ORANGE, PAPER
from encore.report.words import NONE, percent, percent_interval, plural, points, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (
    "Blue: the paired interval of the difference to it is above 0. Orange: below 0. Green: the row "
    "compared with. Grey: these pairs do not tell."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalRow:
    """A line of the figure, shares in [0, 1].

    Attributes:
        name: Of the row.
        score: Its headline.
        ci_low: Lower end of its interval.
        ci_high: Upper end.
        difference: Ends of the interval of its difference to the reference; None for that one.
    """

    name: str
    score: float
    ci_low: float
    ci_high: float
    difference: tuple[float, float] | None

    @classmethod
    def of(cls, row: StoredRow, *, headline: str) -> Self:
        """From a row as it is stored."""
        score, figure = row.figures[headline]
        found = row.difference
        return cls(
            name=printable(row.name),
            score=score,
            ci_low=figure.ci_low,
            ci_high=figure.ci_high,
            difference=None if found is None else (found.ci_low, found.ci_high),
        )

    @property
    def colour(self) -> str:
        """What the difference to the reference says."""
        if self.difference is None:
            return GREEN
        low, high = self.difference
        if low > 0:
            return BLUE
        return ORANGE if high < 0 else MUTED


def benchmark_rows(table: StoredTable, *, name: str) -> Chart:
    """One panel: the rows of the paper's methods, of models and judges, the best first.

    Args:
        table: With at least one row.
        name: Of the figure.
    """
    best_first = sorted(table.rows, key=lambda row: -row.figures[table.headline][0])
    drawn = [row for row in best_first if is_leading(row)] or best_first
    lines = [IntervalRow.of(row, headline=table.headline) for row in drawn]
    score, figure = table.rows[0].figures[table.headline]
    return Chart(
        name=name,
        title=f"{printable(table.headline)}: {printable(table.benchmark)}",
        caption=_caption(table, num_hidden=len(best_first) - len(drawn)),
        panels=(
            intervals_panel(
                lines,
                headline=printable(table.headline),
                line_at=score,
                num_pairs=figure.num_pairs,
                subtitle=_subtitle(table, num_units=figure.num_pairs),
                width=350,
            ),
        ),
        table=_table(table, best_first),
        columns=1,
    )


def is_leading(row: StoredRow) -> bool:
    """Whether a row is one of the paper's methods, a model or a judge, not one more of a scheme."""
    return row.method is not None or row.kind != "scheme"


def intervals_panel(
    rows: Sequence[IntervalRow],
    *,
    headline: str,
    line_at: float,
    num_pairs: int,
    subtitle: str,
    width: float,
) -> Panel:
    """A dot for each row, with its interval, in the order of the rows.

    Args:
        rows: At least one.
        headline: What the score is called.
        line_at: Where the dashed line is: the score of the row compared with.
        num_pairs: That the scores are of.
        subtitle: What the table is of.
        width: In points.
    """
    ends = [end for row in rows for end in (row.ci_low, row.ci_high)]

    def draw(axes: Axes) -> None:
        zero_line(axes, line_at, which="x")
        for place, row in enumerate(rows):
            axes.plot([row.ci_low, row.ci_high], [place, place], color=row.colour)
            [dot] = axes.plot(
                [row.score], [place], "o", color=row.colour, markeredgecolor=PAPER, markersize=7.5
            )
            own = percent_interval(row.ci_low, row.ci_high)
            tip(dot, f"{row.name}: {percent(row.score)} ({own})")
        axes.set_xlim(*padded([*ends, line_at], least=0.005))
        name_rows(axes, [row.name for row in rows])
        percent_axis(axes, "x")
        axes.set_xlabel(f"{headline} (%)")

    best = max(rows, key=lambda row: row.score)
    return Panel(
        title="",
        subtitle=subtitle,
        alt=(
            f"{plural(len(rows), 'row')} on {plural(num_pairs, 'pair')}: from "
            f"{percent(min(row.score for row in rows))} to {percent(best.score)} ({best.name})."
        ),
        draw=draw,
        width=width,
        height=rows_height(len(rows)),
    )


def _subtitle(table: StoredTable, *, num_units: int) -> str:
    partial = ", PARTIAL" if table.is_partial else ""
    return f"{plural(num_units, 'pair')}{partial}"


def _caption(table: StoredTable, *, num_hidden: int) -> str:
    model = table.rows[0].model
    weighed = (
        "" if model is None else f"The heads of model {printable(model)}, weighed, and others. "
    )
    hidden = f" {plural(num_hidden, 'further row')}: in the table below." if num_hidden else ""
    return (
        f"{weighed}Share of pairs ranked as the benchmark has them, with 95 % intervals over pairs "
        f"(Wilson), the best first. The dashed line is {printable(table.reference)}. {COLOURS}"
        f"{hidden}"
    )


def _table(table: StoredTable, rows: Sequence[StoredRow]) -> DataTable:
    subsets = [name for name in table.rows[0].figures if name != table.headline]
    columns = ("row", "score", "95 %", f"to {printable(table.reference)}, points", "95 % of it")
    return DataTable(
        columns=(*columns, *map(printable, subsets)),
        rows=tuple(_cells(row, headline=table.headline, subsets=subsets) for row in rows),
    )


def _cells(row: StoredRow, *, headline: str, subsets: Sequence[str]) -> tuple[str, ...]:
    score, figure = row.figures[headline]
    found, own = row.difference, percent_interval(figure.ci_low, figure.ci_high)
    difference, between = NONE, NONE
    if found is not None:
        difference = points(found.difference, digits=1)
        between = f"{points(found.ci_low, digits=1)} to {points(found.ci_high, digits=1)}"
    of_subsets = (
        percent(row.figures[name][0]) if name in row.figures else NONE for name in subsets
    )
    return (printable(row.name), percent(score), own, difference, between, *of_subsets)
