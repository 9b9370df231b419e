"""Figure: how each rule's ratings are spread (the paper's appendix "Rating Distribution")."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from encore.report.chart import Chart, DataTable, Missing, Panel
from encore.report.charts.axes import percent_axis, tip
from encore.report.findings import Findings
from encore.report.histograms import RuleHistogram
from encore.report.palette import BLUE, INK
from encore.report.words import count, number, percent, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from encore.analysis.statistics import RuleStats

#: One rule that nearly always says the same must not flatten the histograms of all others.
_MAX_TIMES_MEDIAN = 2.0


def rating_histograms(findings: Findings) -> Chart | Missing:
    """One panel for each rule, all with the same axes."""
    histograms = findings.histograms
    if isinstance(histograms, Missing):
        return histograms
    tops = [max(histogram.shares) for histogram in histograms]
    limit = min(max(tops), _MAX_TIMES_MEDIAN * median(tops))
    stats = {rule.rule_id: rule for rule in findings.pooled}
    panels = tuple(
        _panel(findings, histogram, stats[histogram.rule_id], limit) for histogram in histograms
    )
    return Chart(
        name="rating-histograms",
        title="How each rule's ratings are spread",
        caption=(
            "Share of a rule's ratings at each value, chosen and rejected responses together. All "
            "panels have the same axes: the flatter, the higher the entropy H. A bar that is too "
            "high for them has its height written beside it."
        ),
        panels=panels,
        table=_table(findings, histograms),
        columns=3,
    )


def _panel(findings: Findings, histogram: RuleHistogram, stats: RuleStats, limit: float) -> Panel:
    rule = findings.rule(histogram.rule_id)
    top = max(range(len(histogram.shares)), key=histogram.shares.__getitem__)
    entropy = f"H {number(stats.entropy_nats, digits=2)} nats"
    levels = plural(stats.num_levels, "level")

    def draw(axes: Axes) -> None:
        bars = axes.bar(
            histogram.positions, histogram.shares, width=histogram.bar_width, color=BLUE
        )
        rows = zip(bars, histogram.positions, histogram.shares, histogram.num_ratings, strict=True)
        for bar, position, share, num in rows:
            about = "about " if histogram.is_binned else ""
            tip(bar, f"rating {about}{position:g}: {percent(share)}, {count(num)} ratings")
            if share > limit:
                _say_cut(axes, position, share, limit)
        axes.set_xlim(-0.06, 1.06)
        axes.set_ylim(0, limit * 1.04)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("rating")
        axes.set_ylabel("share of ratings (%)")
        percent_axis(axes, "y")

    return Panel(
        title=rule.words,
        subtitle=f"{entropy} · {levels} · n {count(stats.num_ratings)}",
        alt=(
            f"Histogram of rule {rule.words}: {levels}, entropy {entropy}, "
            f"{count(stats.num_ratings)} ratings; most frequent rating "
            f"{histogram.positions[top]:g} with {percent(histogram.shares[top])}."
        ),
        draw=draw,
        width=270,
        height=178,
    )


def _say_cut(axes: Axes, position: float, share: float, limit: float) -> None:
    """The height of a bar that goes on beyond the axes, beside it."""
    is_left = position < 0.5
    axes.annotate(
        f"{percent(share, digits=0)} ↑",
        xy=(position, limit),
        xytext=(14 if is_left else -14, 0),
        textcoords="offset points",
        ha="left" if is_left else "right",
        va="top",
        fontsize=9,
        color=INK,
    )


def _table(findings: Findings, histograms: Sequence[RuleHistogram]) -> DataTable:
    rows = tuple(
        (findings.rule(histogram.rule_id).words, f"{position:g}", count(num), percent(share))
        for histogram in histograms
        for position, share, num in zip(
            histogram.positions, histogram.shares, histogram.num_ratings, strict=True
        )
        if num
    )
    return DataTable(columns=("rule", "rating", "ratings", "share"), rows=rows)
