"""Figure: how far the weights from so many ratings are from the ones they settle at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from encore.report.chart import Chart, DataTable, Missing, Panel
from encore.report.charts.axes import count_axis, tip
from encore.report.findings import Findings
from encore.report.palette import BLUE, GREEN, INK, MUTED, PAPER
from encore.report.words import count, percent, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from encore.evidence.convergence import ConvergenceCurve, Recommendation

#: A projection beyond this many times the data is told in words and not drawn.
_MAX_PROJECTION = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Samples of one size; errors are against the true weights."""

    num_ratings: int
    error_median: float | None
    error_95: float


def convergence(findings: Findings) -> Chart | Missing:
    """One panel: error of the weights against ratings per rule, both logarithmic."""
    curve = findings.convergence
    if isinstance(curve, Missing):
        return curve
    known = _known(curve)
    if len(known) < 2:
        return Missing(reason=" ".join(recommendations(findings)) or "Too few pairs.")
    return Chart(
        name="convergence",
        title="How many ratings are enough",
        caption=(
            "Samples of whole pairs are drawn from the data and ENCORE's weights computed from "
            "each. The error is that of the rule that is farthest off, |weight / true weight − 1|, "
            "where a sample is part of the data that it is compared with and its error is "
            "corrected for that. Green: enough for that target with 95 % confidence; an open mark "
            "lies beyond the data and is extrapolated."
        ),
        panels=(_panel(curve, known),),
        table=_table(curve),
        columns=1,
    )


def recommendations(findings: Findings) -> tuple[str, ...]:
    """How many ratings are enough, in sentences; none where nothing can be said."""
    curve = findings.convergence
    if isinstance(curve, Missing):
        return ()
    return tuple(dict.fromkeys(_sentence(found.sentence) for found in curve.recommendations))


def _sentence(text: str) -> str:
    """With its capital letter and full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else text


def _known(curve: ConvergenceCurve) -> list[_Sizes]:
    """Sizes whose error is above 0, which a logarithmic axis needs."""
    known = []
    for point in curve.points:
        if point.error_95 and point.error_95_population:
            correction = point.error_95_population / point.error_95
            median = point.error_median * correction if point.error_median else None
            known.append(
                _Sizes(
                    num_ratings=point.num_ratings_per_rule,
                    error_median=median,
                    error_95=point.error_95_population,
                )
            )
    return known


def _panel(curve: ConvergenceCurve, known: Sequence[_Sizes]) -> Panel:
    marks = _marks(curve)

    def draw(axes: Axes) -> None:
        axes.set_yscale("log")
        lines = {
            "95 % of samples": ([(one.num_ratings, one.error_95) for one in known], "-"),
            "half of samples": (
                [(one.num_ratings, one.error_median) for one in known if one.error_median],
                (0, (5, 1.5)),
            ),
        }
        for label, (line, style) in lines.items():
            if line:
                axes.plot(
                    *zip(*line, strict=True),
                    color=BLUE,
                    linestyle=style,
                    marker="o",
                    markersize=3.5,
                    label=label,
                )
        _draw_fit(axes, curve, known, marks)
        for found, num_ratings in marks:
            is_reached = found.num_ratings_per_rule is not None
            [mark] = axes.plot(
                [num_ratings],
                [found.target],
                "D",
                color=GREEN if is_reached else PAPER,
                markeredgecolor=GREEN,
                markersize=7,
                zorder=4,
            )
            tip(mark, found.sentence)
        axes.axvline(
            curve.num_ratings_per_rule,
            color=INK,
            linewidth=0.9,
            linestyle=(0, (3, 2)),
            label="all of the data",
        )
        ends = (known[0].num_ratings, curve.num_ratings_per_rule, *(at for _, at in marks))
        axes.set_xlim(0.8 * min(ends), 1.3 * max(ends))
        count_axis(axes, axes.get_xlim())
        _error_axis(axes)
        axes.set_xlabel("ratings per rule")
        axes.set_ylabel("error of the weights (%)")
        axes.legend(loc="best")

    first, last = known[0], known[-1]
    return Panel(
        title="error of the weights",
        subtitle=(
            f"{plural(curve.num_pairs, 'pair')} · {plural(len(curve.rule_ids), 'rule')} · "
            f"{count(curve.num_draws)} samples a point"
        ),
        alt=(
            f"Falling lines: 95 % of samples of {count(first.num_ratings)} ratings per rule are "
            f"within {percent(first.error_95)}, of {count(last.num_ratings)} within "
            f"{percent(last.error_95)}."
        ),
        draw=draw,
        width=350,
        height=275,
    )


def _marks(curve: ConvergenceCurve) -> list[tuple[Recommendation, int]]:
    """Where each target is reached, by the data or by a projection that is not too far."""
    farthest = _MAX_PROJECTION * curve.num_ratings_per_rule
    return [
        (found, found.projected_num_ratings_per_rule)
        for found in curve.recommendations
        if found.projected_num_ratings_per_rule and found.projected_num_ratings_per_rule <= farthest
    ]


def _draw_fit(
    axes: Axes,
    curve: ConvergenceCurve,
    known: Sequence[_Sizes],
    marks: Sequence[tuple[Recommendation, int]],
) -> None:
    """The fitted curve, as far as anything on the axes goes."""
    if curve.fit is None:
        return
    end = max([curve.num_ratings_per_rule, *(at for _, at in marks)])
    num_ratings = np.geomspace(known[0].num_ratings, end, num=60)
    pairs_per_rating = curve.num_pairs / curve.num_ratings_per_rule
    errors = [curve.fit.error(float(size) * pairs_per_rating) for size in num_ratings]
    if all(errors):
        axes.plot(num_ratings, errors, color=MUTED, linewidth=1.0, label="fitted", zorder=1.6)


def _error_axis(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda error, _: f"{100 * error:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _table(curve: ConvergenceCurve) -> DataTable:
    rows = tuple(
        (
            count(point.num_ratings_per_rule),
            count(point.num_pairs),
            percent(point.error_median, digits=2),
            percent(point.error_95, digits=2),
            percent(point.error_95_population, digits=2),
        )
        for point in curve.points
    )
    columns = (
        *("ratings per rule", "pairs", "error, half of samples", "error, 95 % of samples"),
        "95 %, against the true weights",
    )
    return DataTable(columns=columns, rows=rows)
