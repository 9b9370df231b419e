"""Figure: entropy against accuracy in each source, with the fit and the null band."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.statistics import TiePolicy
from encore.report.chart import Chart, DataTable, Missing, Panel
from encore.report.charts.axes import padded, percent_axis, tip, zero_line
from encore.report.findings import Findings, NamedRule
from encore.report.palette import BAND, BLUE, INK, MUTED
from encore.report.words import (
    POLICY_WORDS,
    interval,
    number,
    percent,
    percent_interval,
    plural,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from encore.analysis.correlation import Correlation
    from encore.analysis.intervals import RuleInterval

#: The two that are read together.
HEADLINE: tuple[TiePolicy, TiePolicy] = ("half", "untied")
_NO_ENDS = (None, None)
#: Where a number may stand beside its point, in points of the page, the first choice first.
_LABEL_PLACES = ((6, 5), (-6, 5), (6, -11), (-6, -11))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """A rule in the plane, with the ends of its 95 % intervals."""

    rule: NamedRule
    entropy: float
    accuracy: float
    entropy_ends: tuple[float, float] | None
    accuracy_ends: tuple[float, float] | None


def entropy_accuracy(findings: Findings) -> Chart | Missing:
    """Two panels for each drawn source: half credit and untied, with the same axes."""
    panels = [
        panel for source in findings.drawn_sources for panel in _source_panels(findings, source)
    ]
    if not panels:
        return Missing(reason="No pair has both of its responses rated by any rule.")
    return Chart(
        name="entropy-accuracy",
        title="Entropy against accuracy",
        caption=(
            "Each point is a rule, numbered as in the table of rules, with its 95 % bootstrap "
            "intervals. The line is the least-squares fit. The grey fan holds the slopes whose r "
            "lies in the null band: where 95 % of correlations would lie if the labels meant "
            "nothing. A fit inside the fan shows nothing. First a tie counts half, then ties are "
            "left out; read both. r is with +H (the paper plots −H)."
        ),
        panels=tuple(panels),
        table=_table(findings),
        columns=2,
    )


def _source_panels(findings: Findings, source: str) -> list[Panel]:
    points = {policy: _points(findings, source, policy) for policy in HEADLINE}
    everything = [point for found in points.values() for point in found]
    if not everything:
        return []
    limits = (
        padded([x for p in everything for x in (p.entropy, *(p.entropy_ends or ()))], least=0.02),
        padded([y for p in everything for y in (p.accuracy, *(p.accuracy_ends or ()))], least=0.01),
    )
    return [
        _panel(findings, source, policy, found, limits) for policy, found in points.items() if found
    ]


def _points(findings: Findings, source: str, policy: TiePolicy) -> list[_Point]:
    points = []
    for stats in findings.of_source(source):
        accuracy = stats.accuracy.under(policy)
        if stats.entropy_nats is None or accuracy is None:
            continue
        row = findings.interval(source, stats.rule_id)
        points.append(
            _Point(
                rule=findings.rule(stats.rule_id),
                entropy=stats.entropy_nats,
                accuracy=accuracy,
                entropy_ends=_ends(row, "entropy"),
                accuracy_ends=_ends(row, policy),
            )
        )
    return points


def _ends(row: RuleInterval | None, quantity: str) -> tuple[float, float] | None:
    low, high = getattr(row, f"{quantity}_low", None), getattr(row, f"{quantity}_high", None)
    return None if low is None or high is None else (low, high)


def _panel(
    findings: Findings,
    source: str,
    policy: TiePolicy,
    points: Sequence[_Point],
    limits: tuple[tuple[float, float], tuple[float, float]],
) -> Panel:
    row = findings.correlation(source, entropy="discrete", accuracy=policy)

    def draw(axes: Axes) -> None:
        axes.set_xlim(limits[0])
        axes.set_ylim(limits[1])
        if limits[1][0] < 0.5 < limits[1][1]:
            zero_line(axes, 0.5, which="y")
        if row is not None:
            _draw_fan_and_fit(axes, points, row)
        for point, place in zip(points, _label_places(points, limits), strict=True):
            _draw_point(axes, point, place)
        axes.set_xlabel("entropy of the ratings H (nats)")
        axes.set_ylabel(f"accuracy, {POLICY_WORDS[policy]} (%)")
        percent_axis(axes, "y")

    return Panel(
        title=f"{findings.source_name(source)}: {POLICY_WORDS[policy]}",
        subtitle=_subtitle(row, len(points)),
        alt=(
            f"Scatter plot of {plural(len(points), 'rule')}, {findings.source_name(source)}, "
            f"{POLICY_WORDS[policy]}: {_correlation_words(row)}."
        ),
        draw=draw,
        width=350,
        height=270,
    )


def _subtitle(row: Correlation | None, num_rules: int) -> str:
    if row is None or row.pearson_r is None:
        return f"r has no value · {plural(num_rules, 'rule')}"
    null = interval(row.null_low, row.null_high)
    return f"r {number(row.pearson_r, digits=2)} · null {null} · {plural(num_rules, 'rule')}"


def _correlation_words(row: Correlation | None) -> str:
    if row is None or row.pearson_r is None:
        return "the correlation has no value"
    return (
        f"Pearson's r {number(row.pearson_r, digits=2)}, 95 % interval "
        f"{interval(row.ci_low, row.ci_high)}, null band {interval(row.null_low, row.null_high)}"
    )


def _draw_fan_and_fit(axes: Axes, points: Sequence[_Point], row: Correlation) -> None:
    """Lines through the mean whose slope is r · sd(accuracy) / sd(entropy)."""
    if row.pearson_r is None:
        return
    x = np.array([point.entropy for point in points])
    y = np.array([point.accuracy for point in points])
    edges = np.array(axes.get_xlim())
    slope_of_r = y.std() / x.std()

    def line(r: float) -> NDArray[np.float64]:
        return np.asarray(y.mean() + r * slope_of_r * (edges - x.mean()))

    if row.null_low is not None and row.null_high is not None:
        middle = [edges[0], x.mean(), edges[1]]
        low, high = line(row.null_low), line(row.null_high)
        axes.fill_between(
            middle,
            [low[0], y.mean(), low[1]],
            [high[0], y.mean(), high[1]],
            color=BAND,
            linewidth=0,
            zorder=0.5,
        )
    axes.plot(edges, line(row.pearson_r), color=INK, linewidth=1.6, zorder=2)


def _draw_point(axes: Axes, point: _Point, place: tuple[int, int]) -> None:
    style: dict[str, Any] = {"color": MUTED, "linewidth": 0.9, "alpha": 0.7, "zorder": 2.5}
    if point.entropy_ends is not None:
        axes.plot(point.entropy_ends, (point.accuracy, point.accuracy), **style)
    if point.accuracy_ends is not None:
        axes.plot((point.entropy, point.entropy), point.accuracy_ends, **style)
    [dot] = axes.plot([point.entropy], [point.accuracy], "o", color=BLUE, markersize=6.5, zorder=3)
    tip(
        dot,
        f"{point.rule.words}: entropy {number(point.entropy)} nats, "
        f"accuracy {percent(point.accuracy)}",
    )
    axes.annotate(
        str(point.rule.place),
        xy=(point.entropy, point.accuracy),
        xytext=place,
        textcoords="offset points",
        fontsize=9,
        color=INK,
        ha="left" if place[0] > 0 else "right",
        zorder=4,
    )


def _label_places(
    points: Sequence[_Point], limits: tuple[tuple[float, float], tuple[float, float]]
) -> list[tuple[int, int]]:
    """For each point the place of its number that is farthest from what is there already."""
    (x_low, x_high), (y_low, y_high) = limits
    # Positions in points of the page: the plane is about 290 by 200 of them.
    places = [
        (
            290 * (point.entropy - x_low) / (x_high - x_low),
            200 * (point.accuracy - y_low) / (y_high - y_low),
        )
        for point in points
    ]
    chosen: list[tuple[int, int]] = []
    taken = list(places)
    for place in places:
        others = [spot for spot in taken if spot != place]
        best = max(_LABEL_PLACES, key=partial(_room, place, others))
        chosen.append(best)
        taken.append((place[0] + best[0], place[1] + best[1]))
    return chosen


def _room(
    place: tuple[float, float], others: Sequence[tuple[float, float]], step: tuple[int, int]
) -> int:
    """Steps of 4 points to the nearest other thing; 5 are enough."""
    x, y = place[0] + 1.6 * step[0], place[1] + step[1]
    return min([5, *(int(math.hypot(x - a, y - b) / 4) for a, b in others)])


def _table(findings: Findings) -> DataTable:
    rows = []
    for source in findings.sources:
        for stats in findings.of_source(source):
            row = findings.interval(source, stats.rule_id)
            rows.append(
                (
                    findings.source_name(source),
                    findings.rule(stats.rule_id).words,
                    number(stats.entropy_nats),
                    interval(*(_ends(row, "entropy") or _NO_ENDS), digits=3),
                    percent(stats.accuracy.half),
                    percent_interval(*(_ends(row, "half") or _NO_ENDS)),
                    percent(stats.accuracy.untied),
                    percent_interval(*(_ends(row, "untied") or _NO_ENDS)),
                )
            )
    columns = ("source", "rule", "H (nats)", "95 %", "half", "95 %", "untied", "95 %")
    return DataTable(columns=columns, rows=tuple(rows))
