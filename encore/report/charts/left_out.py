"""Figure: what becomes of ENCORE's composed rating without each rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from encore.report.chart import Chart, DataTable, Missing, Panel
from encore.report.charts.axes import (
    name_rows,
    padded,
    percent_axis,
    rows_height,
    tip,
    zero_line,
)
from encore.report.findings import Findings
from encore.report.palette import BLUE, MUTED, ORANGE, PAPER
from encore.report.words import percent, plural, points

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from encore.weighting.leave_one_out import LeaveOneOut, LeftOut


def left_out(findings: Findings) -> Chart | Missing:
    """One panel: a bar for each rule."""
    found = findings.left_out
    if isinstance(found, Missing):
        return found
    known = [row for row in found.left_out if row.change_half is not None]
    if not known:
        return Missing(reason="Leaving a rule out leaves nothing whose accuracy could be compared.")
    return Chart(
        name="left-out",
        title="What each rule contributes",
        caption=(
            "Change of the composed rating's accuracy (ENCORE at the paper's τ, a tie counts half) "
            "when a rule is left out and the others are weighed again, with 95 % intervals. Blue: "
            "the composition is worse without the rule. Orange: it is better. Grey: the interval "
            "holds 0, so these pairs do not tell."
        ),
        panels=(_panel(findings, found, known),),
        table=_table(findings, known),
        columns=1,
    )


def _panel(findings: Findings, found: LeaveOneOut, rows: Sequence[LeftOut]) -> Panel:
    names = [findings.rule(row.rule_id).words for row in rows]
    changes = [row.change_half or 0.0 for row in rows]
    ends = [end for row in rows for end in (row.change_low, row.change_high) if end is not None]

    def draw(axes: Axes) -> None:
        zero_line(axes, 0.0, which="x")
        for place, (row, change) in enumerate(zip(rows, changes, strict=True)):
            colour = _colour(row)
            if row.change_low is not None and row.change_high is not None:
                axes.plot([row.change_low, row.change_high], [place, place], color=colour)
            [dot] = axes.plot(
                [change], [place], "o", color=colour, markeredgecolor=PAPER, markersize=7.5
            )
            ends_words = f"{points(row.change_low)} to {points(row.change_high)}"
            tip(dot, f"without {names[place]}: {points(change)} points ({ends_words})")
        axes.set_xlim(*padded([0.0, *changes, *ends], least=0.001))
        name_rows(axes, names)
        percent_axis(axes, "x")
        axes.set_xlabel("change of accuracy without the rule (percentage points)")

    return Panel(
        title="without each rule",
        subtitle=(
            f"{plural(found.num_pairs, 'pair')}; with all rules {percent(found.accuracy.half)}"
        ),
        alt=(
            f"{plural(len(rows), 'rule')}: leaving one out changes the accuracy by "
            f"{points(min(changes))} to {points(max(changes))} percentage points."
        ),
        draw=draw,
        width=350,
        height=rows_height(len(rows)),
    )


def _colour(row: LeftOut) -> str:
    if row.change_high is not None and row.change_high < 0:
        return BLUE
    if row.change_low is not None and row.change_low > 0:
        return ORANGE
    return MUTED


def _table(findings: Findings, rows: Sequence[LeftOut]) -> DataTable:
    return DataTable(
        columns=("without", "its weight", "accuracy, half", "change (points)", "95 %"),
        rows=tuple(
            (
                findings.rule(row.rule_id).words,
                percent(row.weight),
                percent(row.accuracy.half),
                points(row.change_half),
                f"{points(row.change_low)} to {points(row.change_high)}",
            )
            for row in rows
        ),
    )
