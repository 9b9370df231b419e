"""Figures about weights: findings in, a chart or the reason why there is none out.

Suffixes: R rules, S schemes, T temperatures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from encore.benchmarks.table import BenchmarkTable, TableLine
from encore.report.drawing import (
    MUTED,
    PAPER,
    REFERENCE,
    Chart,
    DataTable,
    Missing,
    Panel,
    draw_cells,
    draw_dots,
    floats,
    in_percent,
    rows_height,
)
from encore.report.findings import Findings
from encore.report.words import (
    NONE,
    count,
    number,
    percent,
    percent_interval,
    plural,
    points,
    printable,
)
from encore.weighting.scheme import DEFAULT_TAU

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from encore.weighting.scheme_comparison import Draws, SchemeComparison, SchemeRow, TauSweep

#: Full colour is four times an equal share, or a quarter of it and less.
_LOG2_FULL = 2.0
#: A smaller share would be rounded to 0.0, which it is not.
_LEAST_SHOWN = 0.0005
#: With more rules than this there is no room for a decimal.
_MAX_FINE = 12
_TAU_TICKS = (0.01, 0.1, 1, 10, 100)


def scheme_name(row: SchemeRow) -> str:
    """The row's label, with a dagger where labels enter."""
    return printable(row.label) + " †" * row.uses_labels


def scheme_weights(findings: Findings) -> Chart | Missing:
    """Two panels of cells, one row for each rule: weights, and what really moves the reward."""
    comparison = findings.comparison
    if isinstance(comparison, Missing):
        return comparison
    rows = tuple(
        (
            findings.words(rule_id),
            *(percent(row.vector.weights[place], digits=2) for row in comparison.rows),
        )
        for place, rule_id in enumerate(comparison.rule_ids)
    )
    panels = [
        _cells_panel(findings, comparison, "weight", lambda row: row.vector.weights),
        _cells_panel(findings, comparison, "share of what moves the reward", _effects),
    ]
    return Chart(panels, DataTable(("rule", *map(scheme_name, comparison.rows)), rows))


def _effects(row: SchemeRow) -> list[float | None]:
    """Effective weights as shares of their sum; None where a rule has none."""
    total = math.fsum(value for value in row.effective_weights if value is not None)
    return [
        value / total if value is not None and total else None for value in row.effective_weights
    ]


def _cells_panel(
    findings: Findings,
    comparison: SchemeComparison,
    title: str,
    shares_of: Callable[[SchemeRow], Sequence[float | None]],
) -> Panel:
    share_RS = floats([shares_of(row) for row in comparison.rows]).T
    num_rules, num_schemes = share_RS.shape
    with np.errstate(divide="ignore", invalid="ignore"):
        fold_RS = np.clip(np.log2(share_RS * num_rules) / _LOG2_FULL, -1, 1)
    fold_RS[fold_RS < 0] *= 0.6  # orange never full: its text stays dark
    fold_RS[np.nan_to_num(share_RS) == 0] = np.nan  # grey: none at all

    def words(place: int, column: int) -> str:
        return _share_words(float(share_RS[place, column]), digits=int(num_rules <= _MAX_FINE))

    def draw(axes: Axes) -> None:
        draw_cells(axes, fold_RS, words)
        heads = [row.vector.scheme + " †" * row.uses_labels for row in comparison.rows]
        axes.xaxis.tick_top()
        axes.set_xticks(range(num_schemes), heads, rotation=50, ha="left", rotation_mode="anchor")
        places = [str(findings.place(rule_id)) for rule_id in comparison.rule_ids]
        axes.set_yticks(range(num_rules), places)

    width, height = max(240, 62 + 36 * num_schemes), 92 + 23 * num_rules
    pairs = plural(comparison.num_pairs_total, "pair")
    return Panel(f"{title} (%)", pairs, draw, width=width, height=height)


def _share_words(share: float, *, digits: int) -> str:
    if math.isnan(share):
        return NONE
    if share == 1.0:
        return "100"
    return "<0.1" if 0 < share < _LEAST_SHOWN else number(100 * share, digits=digits)


def scheme_accuracy(findings: Findings) -> Chart | Missing:
    """One panel: accuracy of each scheme, ties counting half, with its interval."""
    comparison = findings.comparison
    if isinstance(comparison, Missing):
        return comparison
    rows = [row for row in comparison.rows if row.accuracy.half is not None]
    if not rows:
        return Missing("No pair is rated by every rule, so nothing can be composed.")
    schemes = (
        (
            scheme_name(row),
            "labels" if row.uses_labels else "ratings only",
            percent(row.accuracy.half),
            percent_interval(row.accuracy_low, row.accuracy_high),
            percent(row.accuracy.untied),
            percent(row.accuracy.strict),
            percent(row.accuracy.inclusive),
            percent(_held_out(row)),
            percent(row.beats_random, digits=0),
        )
        for row in comparison.rows
    )
    draws = (
        (
            _draws_name(found),
            "ratings only",
            percent(found.half_mean),
            percent_interval(found.half_low, found.half_high),
            *(NONE,) * 5,
        )
        for found in comparison.draws
    )
    columns = ("scheme", "sees", "half", "95 %", "untied", "strict", "inclusive")
    table = DataTable((*columns, "held out, half", "beats random weights"), (*schemes, *draws))
    return Chart([_schemes_panel(comparison, rows)], table, columns=1)


def _held_out(row: SchemeRow) -> float | None:
    return None if row.held_out_accuracy is None else row.held_out_accuracy.half


def _draws_name(draws: Draws) -> str:
    if draws.scheme == "single":
        return f"every single rule, {count(draws.num_draws)} of them"
    return f"{draws.scheme}, {count(draws.num_draws)} draws"


def _schemes_panel(comparison: SchemeComparison, rows: Sequence[SchemeRow]) -> Panel:
    drawn = [found for found in comparison.draws if found.half_mean is not None]
    names = [*map(scheme_name, rows), *map(_draws_name, drawn)]
    tones = [*("C1" if row.uses_labels else "C0" for row in rows), *(MUTED,) * len(drawn)]
    figures = [(row.accuracy.half, row.accuracy_low, row.accuracy_high) for row in rows]
    figures += [(found.half_mean, found.half_low, found.half_high) for found in drawn]
    best = max(rows, key=lambda row: row.accuracy.half or 0.0)

    def draw(axes: Axes) -> None:
        draw_dots(axes, names, figures, tones)
        [marks] = axes.plot(floats(list(map(_held_out, rows))), range(len(rows)), "D")
        marks.set(color=PAPER, markeredgecolor="C1", markersize=6.5)
        low, high = axes.get_xlim()
        if low < 0.5 < high:
            axes.axvline(0.5, **REFERENCE)
        axes.set_xlabel("accuracy, a tie counts half (%)")

    subtitle = f"{plural(comparison.num_pairs, 'pair')} · highest {scheme_name(best)}"
    return Panel("composed ratings", subtitle, draw, height=rows_height(len(names)))


def tau_sweep(findings: Findings) -> Chart | Missing:
    """Two panels: every rule's weight over tau, and the accuracy of the composed rating."""
    sweep = findings.sweep
    if isinstance(sweep, Missing):
        return sweep
    panels = [_weights_panel(findings, sweep)]
    if any(accuracy.half is not None for accuracy in sweep.accuracies):
        panels.append(_accuracy_panel(sweep))
    numbers = (str(findings.place(rule_id)) for rule_id in sweep.rule_ids)
    rows = tuple(
        (f"{tau:g}", percent(one.half), percent(one.untied), *map(percent, weight_R))
        for tau, one, weight_R in zip(sweep.taus, sweep.accuracies, sweep.weights, strict=True)
    )
    return Chart(panels, DataTable(("τ", "half", "untied", *numbers), rows))


def _weights_panel(findings: Findings, sweep: TauSweep) -> Panel:
    entropies = {rule.rule_id: rule.entropy_nats or 0.0 for rule in findings.pooled}
    ranked = sorted(sweep.rule_ids, key=lambda rule_id: entropies[rule_id])
    named = {ranked[-1]: "C1", ranked[0]: "C0"}

    def draw(axes: Axes) -> None:
        for rule_id, weight_T in zip(sweep.rule_ids, np.array(sweep.weights).T, strict=True):
            [line] = axes.plot(sweep.taus, weight_T, color=MUTED, linewidth=1.1)
            if rule_id in named:
                line.set(color=named[rule_id], linewidth=2.2, zorder=3)
                line.set_label(findings.words(rule_id))
        _tau_axis(axes, sweep)
        axes.legend(loc="upper right", handlelength=1)
        axes.set_ylabel("weight (%)")

    return Panel("weights", plural(len(ranked), "rule"), draw)


def _accuracy_panel(sweep: TauSweep) -> Panel:
    half_T = floats([accuracy.half for accuracy in sweep.accuracies])
    untied_T = floats([accuracy.untied for accuracy in sweep.accuracies])
    low_T, high_T = floats([sweep.accuracy_lows, sweep.accuracy_highs])

    def draw(axes: Axes) -> None:
        axes.plot(sweep.taus, half_T, "C0", label="a tie counts half")
        axes.plot(sweep.taus, untied_T, "C1--", label="ties left out")
        axes.fill_between(sweep.taus, low_T, high_T, color="C0", alpha=0.14, linewidth=0)
        _tau_axis(axes, sweep)
        axes.legend(loc="best")
        axes.set_ylabel("accuracy of the composed rating (%)")

    least, most = (percent(find([half_T, untied_T])) for find in (np.nanmin, np.nanmax))
    subtitle = f"{plural(sweep.num_pairs, 'pair')} · {least} to {most}"
    return Panel("accuracy of the composed rating", subtitle, draw)


def _tau_axis(axes: Axes, sweep: TauSweep) -> None:
    axes.set_xscale("log")
    axes.set_xticks(_TAU_TICKS, [f"{tau:g}" for tau in _TAU_TICKS])
    axes.set_xticks([], minor=True)
    axes.set_xlim(min(sweep.taus), max(sweep.taus))
    axes.axvline(DEFAULT_TAU, **REFERENCE)
    axes.set_xlabel("temperature τ")
    in_percent(axes.yaxis)


# --- benchmark tables -----------------------------------------------------------------------------


def leading_rows(table: BenchmarkTable) -> list[TableLine]:
    """The rows that are drawn, the best first: the paper's methods, models, judges; else all."""
    rows = _ranked(table)
    return [row for row in rows if row.own.method is not None or row.kind != "scheme"] or rows


def _ranked(table: BenchmarkTable) -> list[TableLine]:
    return sorted(table.own_rows, key=lambda row: -row.own.headline.score)


def interval_chart(table: BenchmarkTable) -> Chart:
    """One panel: a dot with its 95 % interval for each leading row, the best first.

    Args:
        table: With at least one row. The table behind the chart has all of them.
    """
    subsets = [one.subset for one in table.own_rows[0].own.subsets]
    rows = []
    for row in _ranked(table):
        headline, figures = row.own.headline, row.own.figures
        found, compared = row.own.comparison, (NONE, NONE)
        if found is not None:
            low, high = (points(end, digits=1) for end in (found.ci_low, found.ci_high))
            compared = (points(found.difference, digits=1), f"{low} to {high}")
        ends = percent_interval(headline.ci_low, headline.ci_high)
        by_subset = (figures[name].score if name in figures else None for name in subsets)
        cells = (printable(row.name), percent(headline.score), ends, *compared)
        rows.append((*cells, *map(percent, by_subset)))
    to_reference = f"to {printable(table.reference)}, points"
    columns = ("row", "score", "95 %", to_reference, "95 % of it", *map(printable, subsets))
    return Chart([_intervals_panel(table)], DataTable(columns, tuple(rows)), columns=1)


def _intervals_panel(table: BenchmarkTable) -> Panel:
    rows = leading_rows(table)
    names = [printable(row.name) for row in rows]
    found = [row.own.headline for row in rows]

    def draw(axes: Axes) -> None:
        figures = [(one.score, one.ci_low, one.ci_high) for one in found]
        draw_dots(axes, names, figures, [_tone(row) for row in rows])
        axes.axvline(table.own_rows[0].own.headline.score, **REFERENCE)
        axes.set_xlabel(f"{printable(table.benchmark.headline)} (%)")

    subtitle = f"{plural(len(rows), 'row')} on {plural(found[0].num_pairs, 'pair')}"
    subtitle += ", PARTIAL" * table.benchmark.is_partial
    return Panel("", subtitle, draw, height=rows_height(len(rows)))


def _tone(row: TableLine) -> str:
    """What the difference to the reference says, as a colour."""
    found = row.own.comparison
    if found is None:
        return "C2"
    if found.ci_low > 0:
        return "C0"
    return "C1" if found.ci_high < 0 else MUTED
