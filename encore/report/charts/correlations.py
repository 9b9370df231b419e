"""Figure: the correlation of entropy with accuracy under each way to count ties."""

from __future__ import annotations

from typing import TYPE_CHECKING

from encore.analysis.statistics import ENTROPY_KINDS, EntropyKind, TiePolicy
from encore.report.chart import Chart, DataTable, Missing, Panel
from encore.report.charts.axes import tip, zero_line
from encore.report.findings import Findings
from encore.report.palette import BAND, BLUE, INK, ORANGE, PAPER
from encore.report.words import (
    POLICY_WORDS,
    interval,
    number,
    p_value,
    plural,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from encore.analysis.correlation import Correlation

#: From the top down: the two that count, then the two that random labels bend.
_POLICIES: tuple[TiePolicy, ...] = ("half", "untied", "strict", "inclusive")
_LOOKS: dict[EntropyKind, tuple[float, str, str]] = {
    "discrete": (-0.16, "o", BLUE),
    "differential": (0.16, "D", ORANGE),
}
_ENTROPY_WORDS: dict[EntropyKind, str] = {
    "discrete": "discrete entropy",
    "differential": "differential (KDE) entropy",
}


def correlations(findings: Findings) -> Chart | Missing:
    """One panel for each drawn source; None of them where no correlation has a value."""
    panels = tuple(
        _panel(findings, source)
        for source in findings.drawn_sources
        if any(row.pearson_r is not None for row in _rows(findings, source))
    )
    if not panels:
        return Missing(
            reason=(
                "A correlation needs at least 3 rules with an entropy and an accuracy, and "
                "neither may be the same for all."
            )
        )
    return Chart(
        name="correlations",
        title="Correlation of entropy with accuracy",
        caption=(
            "Pearson's r with its 95 % Fisher interval, on top of the null band (grey): where 95 % "
            "of correlations would lie if the labels meant nothing. Read half and untied together. "
            "Counting ties as misses (strict) or hits (inclusive) bends r by itself: under random "
            "labels strict manufactures a positive and inclusive a negative correlation."
        ),
        panels=panels,
        table=_table(findings),
        columns=2,
    )


def _rows(findings: Findings, source: str) -> list[Correlation]:
    found = (
        findings.correlation(source, entropy=entropy, accuracy=policy)
        for entropy in ENTROPY_KINDS
        for policy in _POLICIES
    )
    return [row for row in found if row is not None]


def _panel(findings: Findings, source: str) -> Panel:
    rows = _rows(findings, source)
    num_rules = max(row.num_rules for row in rows)

    def draw(axes: Axes) -> None:
        zero_line(axes, 0.0, which="x")
        for row in rows:
            _draw_row(axes, row)
        axes.set_xlim(-1.03, 1.03)
        axes.set_ylim(len(_POLICIES) - 0.4, -0.95)
        axes.set_yticks(range(len(_POLICIES)), _POLICIES)
        for label in axes.get_yticklabels()[:2]:
            label.set_color(INK)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("Pearson's r of accuracy with +H")
        handles = [
            axes.plot([], [], marker, color=colour, markersize=5.5, label=_ENTROPY_WORDS[kind])[0]
            for kind, (_, marker, colour) in _LOOKS.items()
        ]
        axes.legend(handles=handles, loc="upper center", ncols=2, borderaxespad=0.1)

    headline = ", ".join(
        f"{row.accuracy} {number(row.pearson_r, digits=2)} with null band "
        f"{interval(row.null_low, row.null_high)}"
        for row in rows
        if row.entropy == "discrete"
    )
    return Panel(
        title=findings.source_name(source),
        subtitle=plural(num_rules, "rule"),
        alt=f"Correlations with discrete entropy, {findings.source_name(source)}: {headline}.",
        draw=draw,
        width=350,
        height=250,
    )


def _draw_row(axes: Axes, row: Correlation) -> None:
    if row.pearson_r is None:
        return
    shift, marker, colour = _LOOKS[row.entropy]
    y = _POLICIES.index(row.accuracy) + shift
    if row.null_low is not None and row.null_high is not None:
        axes.plot(
            [row.null_low, row.null_high],
            [y, y],
            color=BAND,
            linewidth=10,
            solid_capstyle="butt",
            zorder=1.2,
        )
    if row.ci_low is not None and row.ci_high is not None:
        axes.plot([row.ci_low, row.ci_high], [y, y], color=colour, linewidth=1.3, zorder=2)
    [dot] = axes.plot(
        [row.pearson_r],
        [y],
        marker,
        color=colour,
        markeredgecolor=PAPER,
        markersize=7,
        zorder=3,
    )
    tip(
        dot,
        f"{_ENTROPY_WORDS[row.entropy]}, {POLICY_WORDS[row.accuracy]}: r "
        f"{number(row.pearson_r)}, null band {interval(row.null_low, row.null_high)}",
    )


def _table(findings: Findings) -> DataTable:
    rows = tuple(
        (
            findings.source_name(row.source),
            row.entropy,
            row.accuracy,
            str(row.num_rules),
            number(row.pearson_r),
            p_value(row.p_value),
            interval(row.ci_low, row.ci_high),
            number(row.spearman_rho),
            interval(row.null_low, row.null_high),
        )
        for source in findings.sources
        for row in _rows(findings, source)
    )
    columns = (
        *("source", "entropy", "accuracy", "rules"),
        *("r", "p", "95 %", "Spearman's ρ", "null band"),
    )
    return DataTable(columns=columns, rows=rows)
