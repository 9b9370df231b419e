"""Figure: every row of a benchmark's table with its 95 % interval."""

from __future__ import annotations

from encore.benchmarks.render import title_of
from encore.benchmarks.rows import TableRow
from encore.benchmarks.table import BenchmarkTable
from encore.errors import InputError
from encore.report.chart import Chart, DataTable
from encore.report.charts.benchmark_rows import COLOURS, IntervalRow, intervals_panel
from encore.report.words import percent, percent_interval, points


def interval_chart(table: BenchmarkTable) -> Chart:
    """One panel: a dot for each row of ours, with its Wilson interval, in the table's order.

    Raises:
        InputError: A table without a row of ours.
    """
    rows = [line.row for line in table.lines if line.row is not None]
    if not rows:
        raise InputError("a benchmark table without a row of ours: nothing to draw")
    return Chart(
        name="benchmark-intervals",
        title=f"{table.pairs.benchmark.headline} of every row",
        caption=(
            "Share of pairs ranked as the benchmark has them, with 95 % intervals over pairs "
            f"(Wilson). The dashed line is {rows[0].name}. {COLOURS}"
        ),
        panels=(
            intervals_panel(
                [_line(row) for row in rows],
                headline=table.pairs.benchmark.headline,
                line_at=rows[0].score.headline.score,
                num_pairs=len(table.pairs.pairs),
                subtitle=title_of(table),
                width=520,
            ),
        ),
        table=DataTable(
            columns=("row", "score", "95 %", "difference (points)"),
            rows=tuple(_cells(row) for row in rows),
        ),
        columns=1,
    )


def _line(row: TableRow) -> IntervalRow:
    headline, found = row.score.headline, row.comparison
    return IntervalRow(
        name=row.name,
        score=headline.score,
        ci_low=headline.ci_low,
        ci_high=headline.ci_high,
        difference=None if found is None else (found.ci_low, found.ci_high),
    )


def _interval(row: TableRow) -> str:
    return percent_interval(row.score.headline.ci_low, row.score.headline.ci_high)


def _cells(row: TableRow) -> tuple[str, ...]:
    difference = None if row.comparison is None else row.comparison.difference
    return (row.name, percent(row.score.headline.score), _interval(row), points(difference))
