"""Figure: how often each scheme's composed rating sides with people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from encore.report.chart import Chart, DataTable, Missing, Panel
from encore.report.charts.axes import name_rows, padded, percent_axis, rows_height, tip, zero_line
from encore.report.charts.scheme_weights import scheme_name
from encore.report.findings import Findings
from encore.report.palette import BLUE, MUTED, ORANGE, PAPER
from encore.report.words import count, percent, percent_interval, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from encore.analysis.statistics import Accuracy
    from encore.weighting.comparison import SchemeComparison, SchemeRow
    from encore.weighting.draws import Draws


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One line of the figure: accuracy with ties half, and where it lies on pairs held out."""

    name: str
    half: float
    low: float | None
    high: float | None
    held_out: float | None
    colour: str

    @property
    def values(self) -> list[float]:
        """Everything that must be on the axis."""
        found = (self.half, self.low, self.high, self.held_out)
        return [value for value in found if value is not None]


def scheme_accuracy(findings: Findings) -> Chart | Missing:
    """One panel: accuracy of each scheme, ties counting half, with its interval."""
    comparison = findings.comparison
    if isinstance(comparison, Missing):
        return comparison
    rows = list(_rows(comparison))
    if not rows:
        return Missing(reason="No pair is rated by every rule, so nothing can be composed.")
    groups = "prompt" if comparison.folds_grouped_by == "prompt" else "pair"
    return Chart(
        name="scheme-accuracy",
        title="Accuracy by scheme",
        caption=(
            "How often the composed rating of the chosen response is higher, a tie counting half, "
            "with 95 % intervals. All schemes are measured on the same pairs, those that every "
            "rule rated fully. What learns from the labels (orange, †) looks better on the pairs "
            "it learnt from; the open mark is its accuracy on held-out folds, grouped by "
            f"{groups}. Grey lines hold 95 % of many draws: a scheme inside them does no better "
            "than chance would."
        ),
        panels=(_panel(comparison, rows),),
        table=_table(comparison),
        columns=1,
    )


def _rows(comparison: SchemeComparison) -> Iterator[_Row]:
    for row in comparison.rows:
        if row.accuracy.half is not None:
            yield _Row(
                name=scheme_name(row),
                half=row.accuracy.half,
                low=row.accuracy_low,
                high=row.accuracy_high,
                held_out=_half(row.held_out_accuracy),
                colour=ORANGE if row.uses_labels or row.uses_benchmark else BLUE,
            )
    for draws in comparison.draws:
        if draws.mean is not None:
            low, high = draws.spread
            yield _Row(
                name=draws_name(draws),
                half=draws.mean,
                low=low,
                high=high,
                held_out=None,
                colour=MUTED,
            )


def draws_name(draws: Draws) -> str:
    """What was drawn, and how often."""
    if draws.scheme == "single":
        return f"every single rule, {count(draws.num_draws)} of them"
    return f"{draws.scheme}, {count(draws.num_draws)} draws"


def _half(accuracy: Accuracy | None) -> float | None:
    return None if accuracy is None else accuracy.half


def _panel(comparison: SchemeComparison, rows: Sequence[_Row]) -> Panel:
    best = max(rows, key=lambda row: row.half)

    def draw(axes: Axes) -> None:
        low, high = padded([value for row in rows for value in row.values], least=0.005)
        axes.set_xlim(low, high)
        if low < 0.5 < high:
            zero_line(axes, 0.5, which="x")
        for place, row in enumerate(rows):
            _draw_row(axes, place, row)
        name_rows(axes, [row.name for row in rows])
        percent_axis(axes, "x")
        axes.set_xlabel("accuracy, a tie counts half (%)")

    return Panel(
        title="composed ratings",
        subtitle=plural(comparison.num_pairs, "pair"),
        alt=(
            f"Accuracy of {plural(len(comparison.rows), 'scheme')} on "
            f"{plural(comparison.num_pairs, 'pair')}, highest {best.name} with "
            f"{percent(best.half)}."
        ),
        draw=draw,
        width=350,
        height=rows_height(len(rows)),
    )


def _draw_row(axes: Axes, place: int, row: _Row) -> None:
    if row.low is not None and row.high is not None:
        axes.plot([row.low, row.high], [place, place], color=row.colour, linewidth=1.4)
    [dot] = axes.plot(
        [row.half], [place], "o", color=row.colour, markeredgecolor=PAPER, markersize=7.5
    )
    tip(dot, f"{row.name}: {percent(row.half)} ({percent_interval(row.low, row.high)})")
    if row.held_out is not None:
        [mark] = axes.plot(
            [row.held_out],
            [place],
            "D",
            color=PAPER,
            markeredgecolor=row.colour,
            markeredgewidth=1.4,
            markersize=6.5,
            zorder=3,
        )
        tip(mark, f"{row.name}, held out: {percent(row.held_out)}")


def _table(comparison: SchemeComparison) -> DataTable:
    schemes = (
        (
            scheme_name(row),
            _seen(row),
            percent(row.accuracy.half),
            percent_interval(row.accuracy_low, row.accuracy_high),
            percent(row.accuracy.untied),
            percent(row.accuracy.strict),
            percent(row.accuracy.inclusive),
            percent(_half(row.held_out_accuracy)),
            percent(row.beats_random, digits=0),
        )
        for row in comparison.rows
    )
    draws = (
        (
            draws_name(found),
            _seen(None),
            percent(found.mean),
            percent_interval(*found.spread),
            *("–",) * 5,
        )
        for found in comparison.draws
    )
    columns = (
        *("scheme", "sees", "half", "95 %", "untied", "strict", "inclusive"),
        *("held out, half", "beats random weights"),
    )
    return DataTable(columns=columns, rows=(*schemes, *draws))


def _seen(row: SchemeRow | None) -> str:
    leaks = () if row is None else (("labels", row.uses_labels), ("benchmark", row.uses_benchmark))
    return " and ".join(words for words, is_seen in leaks if is_seen) or "ratings only"
