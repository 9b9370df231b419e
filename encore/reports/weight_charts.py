"""Charts about weights. Each function returns a chart, or the reason why there is none.

Suffixes: R rules, S schemes, T temperatures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from encore.analysis.answer_options import DEFAULT_TAU
from encore.benchmarks.benchmark_table import BenchmarkTable, TableLine
from encore.core.number_text import (
    NONE,
    count,
    counted,
    number,
    percent,
    percent_interval,
    points,
    printable,
)
from encore.reports.figure_drawing import (
    MUTED,
    PAPER,
    REFERENCE,
    Chart,
    DataTable,
    Floats,
    Missing,
    Panel,
    draw_cells,
    draw_dots,
    floats,
    in_percent,
    rows_height,
)
from encore.reports.findings import Findings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from encore.weighting.label_curve import LabelCurve
    from encore.weighting.scheme_comparison import Draws, SchemeComparison, SchemeRow, TauSweep

#: Smallest share that is printed as a number: a smaller one would read 0.0.
_LEAST_SHOWN = 0.0005
#: Strongest orange of a cell. Full orange would hide how small a weight is.
_PALEST = -0.6
#: Widths in points of the names of schemes, and of a cell.
_SCHEME_NAME_WIDTH, _CELL_WIDTH = 86.0, 21.0
_TAU_TICKS = (0.01, 0.1, 1, 10, 100)


def scheme_name(row: SchemeRow) -> str:
    """Return the row's label, with a dagger if the scheme learns from labels."""
    return printable(row.label) + " †" * row.uses_labels


def scheme_weights(findings: Findings) -> Chart | Missing:
    """Draw two panels of cells, a row per scheme: weights, and shares of the reward's movement.

    Rules are columns with numbers, so that ten of them fit a phone.
    """
    comparison = findings.comparison
    if isinstance(comparison, Missing):
        return comparison
    weight_RS = floats([row.vector.weights for row in comparison.rows]).T
    effect_RS = floats([row.effective_weights for row in comparison.rows]).T
    num_rules, num_schemes = weight_RS.shape
    with np.errstate(invalid="ignore"):
        effect_RS /= np.nansum(effect_RS, axis=0)
    rows = [
        (findings.rule_label(rule_id), *(percent(weight, digits=2) for weight in weight_S))
        for rule_id, weight_S in zip(comparison.rule_ids, weight_RS, strict=True)
    ]
    panels = [
        _cells_panel(findings, comparison, "weight", weight_RS),
        _cells_panel(findings, comparison, "share of what moves the reward", effect_RS),
    ]
    table = DataTable(("rule", *map(scheme_name, comparison.rows)), rows)
    width, height = _SCHEME_NAME_WIDTH + _CELL_WIDTH * num_rules, 60 + 20 * num_schemes
    return Chart(panels, table, width=max(width, 295.0), height=height)


def _cells_panel(
    findings: Findings, comparison: SchemeComparison, title: str, share_RS: Floats
) -> Panel:
    texts = [
        ["<0.1" if 0 < share < _LEAST_SHOWN else number(100 * share, digits=1) for share in share_R]
        for share_R in share_RS.T
    ]

    def draw(axes: Axes) -> None:
        tone_RS = np.clip(share_RS * len(share_RS) - 1, _PALEST, 1)
        names = [row.vector.scheme + " †" * row.uses_labels for row in comparison.rows]
        draw_cells(axes, np.where(share_RS > 0, tone_RS, np.nan).T, texts, names)
        numbers = [findings.rule_number(rule_id) for rule_id in comparison.rule_ids]
        axes.set_xticks(range(len(numbers)), map(str, numbers))
        axes.set_xlabel("rule")

    labels = [findings.rule_label(rule_id) for rule_id in comparison.rule_ids]
    hints = {
        (float(column), float(row)): f"{label}, {scheme_name(scheme)}: {texts[row][column]} %"
        for row, scheme in enumerate(comparison.rows)
        for column, label in enumerate(labels)
    }
    return Panel(f"{title} (%)", counted(comparison.num_pairs_total, "pair"), draw, hints)


def scheme_accuracy(findings: Findings) -> Chart | Missing:
    """Draw the accuracy of each scheme with its interval; a tie counts half."""
    comparison = findings.comparison
    if isinstance(comparison, Missing):
        return comparison
    if not comparison.num_pairs:
        return Missing("No pair is rated by every rule, so nothing can be composed.")
    schemes, draws = comparison.rows, comparison.draws
    names = [*map(scheme_name, schemes), *map(_draws_name, draws)]
    held_out = [getattr(row.held_out_accuracy, "half", None) for row in schemes]
    estimates = [(row.accuracy.half, row.accuracy_low, row.accuracy_high) for row in schemes]
    estimates += [(row.half_mean, row.half_low, row.half_high) for row in draws]
    cells = [
        (
            percent(row.accuracy.untied),
            percent(row.accuracy.strict),
            percent(row.accuracy.inclusive),
            percent(held_out_half),
            percent(row.beats_random, digits=0),
        )
        for row, held_out_half in zip(schemes, held_out, strict=True)
    ]
    cells += [(NONE, NONE, NONE, NONE, NONE) for _ in draws]
    rows = [
        (name, percent(half), percent_interval(low, high), *further_cells)
        for name, (half, low, high), further_cells in zip(names, estimates, cells, strict=True)
    ]

    def draw(axes: Axes) -> None:
        colors = ["C1" if row.uses_labels else "C0" for row in schemes]
        draw_dots(axes, names, estimates, [*colors, *(MUTED for _ in draws)])
        [marks] = axes.plot(floats(held_out), range(len(schemes)), "D")
        marks.set(color=PAPER, markeredgecolor="C1", markersize=6.5)
        axes.axvline(0.5, **REFERENCE)
        axes.set_xlabel("accuracy, a tie counts half (%)")

    best = max(schemes, key=lambda row: row.accuracy.half or 0.0)
    subtitle = f"{counted(comparison.num_pairs, 'pair')} · highest {scheme_name(best)}"
    panel = Panel("composed ratings", subtitle, draw)
    columns = ("half", "95 %", "untied", "strict", "inclusive", "held out, half")
    table = DataTable(("scheme", *columns, "better than random weights"), rows)
    return Chart([panel], table, height=rows_height(len(names)))


def _draws_name(draws: Draws) -> str:
    if draws.scheme == "single":
        return f"every single rule, {count(draws.num_draws)} of them"
    return f"{draws.scheme}, {count(draws.num_draws)} draws"


def tau_sweep(findings: Findings) -> Chart | Missing:
    """Draw every rule's weight over τ, and the accuracy of the composed rating."""
    sweep = findings.sweep
    if isinstance(sweep, Missing):
        return sweep
    panels = [_weights_panel(findings, sweep)]
    if sweep.num_pairs:
        panels.append(_accuracy_panel(sweep))
    rows = [
        (f"{tau:g}", percent(accuracy.half), percent(accuracy.untied), *map(percent, weight_R))
        for tau, accuracy, weight_R in zip(sweep.taus, sweep.accuracies, sweep.weights, strict=True)
    ]
    numbers = (str(findings.rule_number(rule_id)) for rule_id in sweep.rule_ids)
    return Chart(panels, DataTable(("τ", "half", "untied", *numbers), rows))


def _weights_panel(findings: Findings, sweep: TauSweep) -> Panel:
    entropies = {rule.rule_id: rule.entropy_nats or 0.0 for rule in findings.pooled}
    ranked = sorted(sweep.rule_ids, key=lambda rule_id: entropies[rule_id])
    color_by_named_rule = {ranked[-1]: "C1", ranked[0]: "C0"}

    def draw(axes: Axes) -> None:
        for rule_id, weight_T in zip(sweep.rule_ids, np.array(sweep.weights).T, strict=True):
            [line] = axes.plot(sweep.taus, weight_T, color=MUTED, linewidth=1.1)
            if rule_id in color_by_named_rule:
                line.set(color=color_by_named_rule[rule_id], linewidth=2.2, zorder=3)
                line.set_label(findings.rule_label(rule_id))
        _tau_axis(axes, sweep)
        axes.legend(loc="upper right", handlelength=1)
        axes.set_ylabel("weight (%)")

    return Panel("weights", counted(len(ranked), "rule"), draw)


def _accuracy_panel(sweep: TauSweep) -> Panel:
    half_T = floats([accuracy.half for accuracy in sweep.accuracies])
    untied_T = floats([accuracy.untied for accuracy in sweep.accuracies])
    low_T, high_T = floats([sweep.accuracy_lows, sweep.accuracy_highs])

    def draw(axes: Axes) -> None:
        axes.plot(sweep.taus, half_T, "C0", label="a tie counts half")
        axes.plot(sweep.taus, untied_T, "C1--", label="ties left out")
        axes.fill_between(sweep.taus, low_T, high_T, color="C0", alpha=0.14, linewidth=0)
        _tau_axis(axes, sweep)
        axes.legend()
        axes.set_ylabel("accuracy of the composed rating (%)")

    subtitle = (
        f"{counted(sweep.num_pairs, 'pair')} · {percent(half_T.min())} to {percent(half_T.max())}"
    )
    return Panel("accuracy of the composed rating", subtitle, draw)


def label_curve_chart(curve: LabelCurve | Missing) -> Chart | Missing:
    """Draw the accuracy of fitted weights over their number of labels, with two schemes as lines.

    The lines are ENCORE's weights and uniform ones, which need no labels.
    """
    if isinstance(curve, Missing):
        return curve
    estimates = (*curve.shrunk, curve.encore, curve.uniform)
    half_S, low_S, high_S = floats([(row.value, row.low, row.high) for row in estimates]).T
    num = len(curve.num_labels)

    def draw(axes: Axes) -> None:
        axes.plot(curve.num_labels, half_S[:num], "C0o-", label="fitted (shrunk) †")
        axes.fill_between(
            curve.num_labels, low_S[:num], high_S[:num], color="C0", alpha=0.14, linewidth=0
        )
        axes.axhline(half_S[num], color="C1", label="encore, no labels")
        axes.axhline(half_S[num + 1], **REFERENCE, label="uniform, no labels")
        axes.set_xscale("log")
        axes.set_xticks(curve.num_labels, [f"{labels:,}" for labels in curve.num_labels])
        axes.minorticks_off()
        in_percent(axes.yaxis)
        axes.legend()
        axes.set_xlabel("labelled pairs")
        axes.set_ylabel("accuracy on held-out pairs (%)")

    names = [*(f"fitted, {labels:,} labels" for labels in curve.num_labels), "encore", "uniform"]
    rows = [
        (name, percent(half), percent_interval(low, high))
        for name, half, low, high in zip(names, half_S, low_S, high_S, strict=True)
    ]
    panel = Panel("accuracy by number of labels", counted(curve.num_pairs, "pair"), draw)
    return Chart([panel], DataTable(("weights", "half", "95 %"), rows), columns=1)


def _tau_axis(axes: Axes, sweep: TauSweep) -> None:
    axes.set(xscale="log", xlim=(min(sweep.taus), max(sweep.taus)), xlabel="temperature τ")
    axes.set_xticks(_TAU_TICKS, [f"{tau:g}" for tau in _TAU_TICKS])
    axes.axvline(DEFAULT_TAU, **REFERENCE)
    in_percent(axes.yaxis)


# --- benchmark tables -----------------------------------------------------------------------------


def leading_rows(table: BenchmarkTable) -> list[TableLine]:
    """Return the drawn rows, best first: the paper's methods, models and judges, or all."""
    rows = _ranked(table)
    return [
        row for row in rows if row.our_figures.method is not None or row.kind != "scheme"
    ] or rows


def _ranked(table: BenchmarkTable) -> list[TableLine]:
    return sorted(table.rows_with_figures, key=lambda row: -row.our_figures.headline.score)


def interval_chart(table: BenchmarkTable) -> Chart:
    """Draw a dot with its 95 % interval for each leading row, best first.

    Args:
        table: Benchmark table with at least one row. The chart's table has all rows.
    """
    reference = table.rows_with_figures[0].our_figures
    subsets = [score.subset for score in reference.subsets]
    rows = []
    for row in _ranked(table):
        headline, comparison = row.our_figures.headline, row.our_figures.comparison
        score_cells = (percent(headline.score), percent_interval(headline.ci_low, headline.ci_high))
        difference_cells = (NONE, NONE)
        if comparison is not None:
            ends = f"{points(comparison.ci_low)} to {points(comparison.ci_high)}"
            difference_cells = (points(comparison.difference), ends)
        figures = row.our_figures.figures
        by_subset = [percent(figures[name].score) if name in figures else NONE for name in subsets]
        rows.append((printable(row.name), *score_cells, *difference_cells, *by_subset))
    drawn = leading_rows(table)

    def draw(axes: Axes) -> None:
        scores = [row.our_figures.headline for row in drawn]
        estimates = [(score.score, score.ci_low, score.ci_high) for score in scores]
        draw_dots(axes, [printable(row.name) for row in drawn], estimates, [*map(_color, drawn)])
        axes.axvline(reference.headline.score, **REFERENCE)
        axes.set_xlabel(f"{printable(table.benchmark.headline)} (%)")

    subtitle = f"{counted(len(drawn), 'row')} on {counted(reference.headline.num_pairs, 'pair')}"
    panel = Panel("", subtitle + ", PARTIAL" * table.benchmark.is_partial, draw)
    to_reference = f"to {printable(table.reference)}, points"
    columns = ("row", "score", "95 %", to_reference, "95 % of it", *map(printable, subsets))
    return Chart([panel], DataTable(columns, rows), height=rows_height(len(drawn)))


def _color(row: TableLine) -> str:
    """Return the colour for a row's difference to the reference: better, worse or not clear."""
    comparison = row.our_figures.comparison
    if comparison is None:
        return "C2"
    if comparison.ci_low > 0:
        return "C0"
    return "C1" if comparison.ci_high < 0 else MUTED
