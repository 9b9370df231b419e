"""Figure: how often each rule sides with people, against them, or does not decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from encore.analysis.statistics import POOLED
from encore.report.chart import Chart, DataTable, Missing, Panel
from encore.report.charts.axes import (
    name_rows,
    percent_axis,
    rows_height,
    swatch,
    tip,
    zero_line,
)
from encore.report.findings import Findings
from encore.report.palette import BAND, BLUE, INK, ORANGE
from encore.report.words import count, percent, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from encore.analysis.statistics import RuleStats

_HEIGHT = 0.36
#: Above the rows, in heights of a row.
_LEGEND_ROOM = 0.6


def ties(findings: Findings) -> Chart | Missing:
    """One panel: over all sources, a bar of three parts for each rule that rated a pair."""
    rules = [rule for rule in findings.pooled if rule.num_pairs]
    if not rules:
        return Missing(reason="No pair has both of its responses rated by any rule.")
    return Chart(
        name="ties",
        title="Who wins: chosen, rejected, or neither",
        caption=(
            "Each bar is all pairs that the rule rated fully. A tie decides nothing, and how ties "
            "are counted decides what accuracy means. The mark in the middle of the ties is the "
            "accuracy that counts a tie as half: right of the dashed line the rule sides with "
            "people more often than a coin."
        ),
        panels=(_panel(findings, rules),),
        table=_table(findings),
        columns=1,
    )


def _panel(findings: Findings, rules: Sequence[RuleStats]) -> Panel:
    names = [findings.rule(rule.rule_id).words for rule in rules]
    rates = [rule.tie_rate or 0.0 for rule in rules]

    def draw(axes: Axes) -> None:
        zero_line(axes, 0.5, which="x")
        for place, rule in enumerate(rules):
            _draw_row(axes, place, names[place], rule)
        axes.set_xlim(0, 1)
        name_rows(axes, names, room_above=_LEGEND_ROOM)
        percent_axis(axes, "x")
        axes.set_xlabel("share of pairs (%)")
        handles = [
            swatch(colour, label)
            for label, colour in (
                ("chosen rated higher", BLUE),
                ("tie", BAND),
                ("rejected higher", ORANGE),
            )
        ]
        axes.legend(
            handles=handles,
            loc="upper left",
            ncols=3,
            borderpad=0,
            borderaxespad=0,
            columnspacing=1.2,
            handlelength=1,
        )

    pairs = {rule.num_pairs for rule in rules}
    num_pairs = (
        plural(max(pairs), "pair")
        if len(pairs) == 1
        else f"{count(min(pairs))} to {count(max(pairs))} pairs"
    )
    return Panel(
        title=findings.source_name(POOLED),
        subtitle=f"{num_pairs} for each rule",
        alt=(
            f"Stacked bars of {plural(len(rules), 'rule')}: between {percent(min(rates))} and "
            f"{percent(max(rates))} of pairs are ties."
        ),
        draw=draw,
        width=350,
        height=rows_height(len(rules) + _LEGEND_ROOM),
    )


def _draw_row(axes: Axes, place: int, name: str, rule: RuleStats) -> None:
    wins, rate, half = rule.accuracy.strict, rule.tie_rate, rule.accuracy.half
    if wins is None or rate is None or half is None:
        return
    parts = (
        (0.0, wins, BLUE, "chosen rated higher"),
        (wins, rate, BAND, "ties"),
        (wins + rate, 1.0 - wins - rate, ORANGE, "rejected rated higher"),
    )
    for start, width, colour, words in parts:
        [bar] = axes.barh([place], [width], left=start, height=_HEIGHT, color=colour)
        tip(bar, f"{name}: {words} {percent(width)}")
    [mark] = axes.plot([half], [place], "|", color=INK, markersize=13, markeredgewidth=2)
    tip(mark, f"{name}: accuracy with ties half {percent(half)}")


def _table(findings: Findings) -> DataTable:
    rows = tuple(
        (
            findings.source_name(source),
            findings.rule(rule.rule_id).words,
            count(rule.num_pairs),
            percent(rule.tie_rate),
            *(
                percent(accuracy)
                for accuracy in (
                    rule.accuracy.half,
                    rule.accuracy.untied,
                    rule.accuracy.strict,
                    rule.accuracy.inclusive,
                )
            ),
        )
        for source in findings.sources
        for rule in findings.of_source(source)
    )
    columns = ("source", "rule", "pairs", "ties", "half", "untied", "strict", "inclusive")
    return DataTable(columns=columns, rows=rows)
