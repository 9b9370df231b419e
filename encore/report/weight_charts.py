"""Figures about weights: findings in, a chart or the reason why there is none out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from encore.report.drawing import (
    Chart,
    DataTable,
    Missing,
    Panel,
    colour,
    diverging_colours,
    name_rows,
    percent_axis,
    reference_line,
    rows_height,
)
from encore.report.findings import Findings
from encore.report.words import NONE, count, number, percent, percent_interval, plural, printable
from encore.weighting.scheme import DEFAULT_TAU

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from encore.weighting.comparison import Draws, SchemeComparison, SchemeRow, TauSweep

#: Full colour is four times an equal share, or a quarter of it and less.
_LOG2_FULL = 2.0
#: A smaller share would be rounded to 0.0, which it is not.
_LEAST_SHOWN = 0.0005
#: With more rules than this there is no room for a decimal.
_MAX_FINE = 12
_TAU_TICKS = (0.01, 0.1, 1, 10, 100)


def scheme_weights(findings: Findings) -> Chart | Missing:
    """Two panels of cells, one row for each rule: weights, and what really moves the reward."""
    comparison = findings.comparison
    if isinstance(comparison, Missing):
        return comparison
    names = [scheme_name(row) for row in comparison.rows]
    rows = tuple(
        (
            findings.rule(rule.rule_id).words,
            *(percent(row.vector.weights[place], digits=2) for row in comparison.rows),
        )
        for place, rule in enumerate(comparison.rules)
    )
    return Chart(
        panels=(
            _cells_panel(findings, comparison, "weight", lambda row: list(row.vector.weights)),
            _cells_panel(findings, comparison, "share of what moves the reward", _effects),
        ),
        table=DataTable(columns=("rule", *names), rows=rows),
    )


def scheme_name(row: SchemeRow) -> str:
    """The row's label, with a dagger where labels or a benchmark enter."""
    return printable(row.label) + _dagger(row)


def _dagger(row: SchemeRow) -> str:
    return " †" if row.uses_labels or row.uses_benchmark else ""


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
    shares_of: Callable[[SchemeRow], list[float | None]],
) -> Panel:
    share_RS = np.array([shares_of(row) for row in comparison.rows], dtype=float).T
    num_rules, num_schemes = share_RS.shape
    with np.errstate(divide="ignore", invalid="ignore"):
        fold_RS = np.clip(np.log2(share_RS * num_rules), -_LOG2_FULL, _LOG2_FULL)
    fold_RS[np.nan_to_num(share_RS) == 0] = np.nan  # grey: none at all
    digits = 1 if num_rules <= _MAX_FINE else 0

    def draw(axes: Axes) -> None:
        from matplotlib.colors import TwoSlopeNorm

        norm = TwoSlopeNorm(0.0, vmin=-1.6 * _LOG2_FULL, vmax=_LOG2_FULL)  # orange never full
        axes.imshow(fold_RS, cmap=diverging_colours(), norm=norm, aspect="auto")
        for place, column in np.ndindex(num_rules, num_schemes):
            is_dark = fold_RS[place, column] > 0.6 * _LOG2_FULL
            axes.text(
                column,
                place,
                _share_words(float(share_RS[place, column]), digits=digits),
                fontsize=9,
                ha="center",
                va="center_baseline",
                color=colour("paper" if is_dark else "ink"),
            )
        heads = [
            f"{row.vector.scheme}{scheme_name(row)[len(printable(row.label)) :]}"
            for row in comparison.rows
        ]
        axes.xaxis.tick_top()
        axes.set_xticks(range(num_schemes), heads, rotation=50, ha="left", rotation_mode="anchor")
        places = [str(findings.rule(rule.rule_id).place) for rule in comparison.rules]
        axes.set_yticks(range(num_rules), places)
        axes.set_ylabel("rule")
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)

    names = ", ".join(scheme_name(row) for row in comparison.rows)
    return Panel(
        title=f"{title} (%)",
        subtitle=plural(comparison.num_pairs_total, "pair"),
        alt=f"Cells of {title} for {plural(num_rules, 'rule')} under the schemes {names}.",
        draw=draw,
        width=max(240, 62 + 36 * num_schemes),
        height=92 + 23 * num_rules,
    )


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
        return Missing(reason="No pair is rated by every rule, so nothing can be composed.")
    schemes = (
        (
            scheme_name(row),
            _seen(row),
            percent(row.accuracy.half),
            percent_interval(row.accuracy_low, row.accuracy_high),
            percent(row.accuracy.untied),
            percent(row.accuracy.strict),
            percent(row.accuracy.inclusive),
            percent(None if row.held_out_accuracy is None else row.held_out_accuracy.half),
            percent(row.beats_random, digits=0),
        )
        for row in comparison.rows
    )
    draws = (
        (
            draws_name(found),
            "ratings only",
            percent(found.half_mean),
            percent_interval(found.half_low, found.half_high),
            *(NONE,) * 5,
        )
        for found in comparison.draws
    )
    columns = ("scheme", "sees", "half", "95 %", "untied", "strict", "inclusive")
    return Chart(
        panels=(_schemes_panel(comparison, rows),),
        table=DataTable(
            columns=(*columns, "held out, half", "beats random weights"), rows=(*schemes, *draws)
        ),
        columns=1,
    )


def draws_name(draws: Draws) -> str:
    """What was drawn, and how often."""
    if draws.scheme == "single":
        return f"every single rule, {count(draws.num_draws)} of them"
    return f"{draws.scheme}, {count(draws.num_draws)} draws"


def _seen(row: SchemeRow) -> str:
    leaks = (("labels", row.uses_labels), ("benchmark", row.uses_benchmark))
    return " and ".join(words for words, is_seen in leaks if is_seen) or "ratings only"


def _schemes_panel(comparison: SchemeComparison, rows: Sequence[SchemeRow]) -> Panel:
    draws = [found for found in comparison.draws if found.half_mean is not None]
    lines = [
        (
            scheme_name(row),
            row.accuracy.half,
            (row.accuracy_low, row.accuracy_high),
            "C1" if row.uses_labels or row.uses_benchmark else "C0",
        )
        for row in rows
    ] + [
        (draws_name(found), found.half_mean, (found.half_low, found.half_high), "")
        for found in draws
    ]
    best = max(rows, key=lambda row: row.accuracy.half or 0.0)

    def draw(axes: Axes) -> None:
        for place, (_, half, ends, tone) in enumerate(lines):
            shown = tone or colour("muted")
            if None not in ends:
                axes.plot(ends, [place, place], color=shown, linewidth=1.4)  # type: ignore[arg-type]
            axes.plot(half or 0.0, place, "o", color=shown, markersize=7.5)
        for place, row in enumerate(rows):
            if row.held_out_accuracy is not None:
                [mark] = axes.plot(row.held_out_accuracy.half or 0.0, place, "D", markersize=6.5)
                mark.set(color=colour("paper"), markeredgecolor="C1")
        low, high = axes.get_xlim()
        if low < 0.5 < high:
            reference_line(axes, 0.5, "x")
        name_rows(axes, [name for name, *_ in lines])
        percent_axis(axes, "x")
        axes.set_xlabel("accuracy, a tie counts half (%)")

    return Panel(
        title="composed ratings",
        subtitle=plural(comparison.num_pairs, "pair"),
        alt=(
            f"Accuracy of {plural(len(comparison.rows), 'scheme')} on "
            f"{plural(comparison.num_pairs, 'pair')}, highest {scheme_name(best)} with "
            f"{percent(best.accuracy.half)}."
        ),
        draw=draw,
        height=rows_height(len(lines)),
    )


def tau_sweep(findings: Findings) -> Chart | Missing:
    """Two panels: every rule's weight over tau, and the accuracy of the composed rating."""
    sweep = findings.sweep
    if isinstance(sweep, Missing):
        return sweep
    panels = [_weights_panel(findings, sweep)]
    if any(accuracy.half is not None for accuracy in sweep.accuracies):
        panels.append(_accuracy_panel(sweep))
    numbers = (str(findings.rule(rule_id).place) for rule_id in sweep.rule_ids)
    rows = zip(sweep.taus, sweep.accuracies, sweep.weights_TR, strict=True)
    return Chart(
        panels=tuple(panels),
        table=DataTable(
            columns=("τ", "half", "untied", *numbers),
            rows=tuple(
                (f"{tau:g}", percent(one.half), percent(one.untied), *map(percent, weight_R))
                for tau, one, weight_R in rows
            ),
        ),
    )


def _weights_panel(findings: Findings, sweep: TauSweep) -> Panel:
    entropies = {rule.rule_id: rule.entropy_nats or 0.0 for rule in findings.pooled}
    ranked = sorted(sweep.rule_ids, key=lambda rule_id: entropies.get(rule_id, 0.0))
    lowest = findings.rule(ranked[0])

    def draw(axes: Axes) -> None:
        tones = {ranked[-1]: "C1", ranked[0]: "C0"}
        for rule_id, weight_T in zip(
            sweep.rule_ids, zip(*sweep.weights_TR, strict=True), strict=True
        ):
            tone, is_named = tones.get(rule_id, colour("muted")), rule_id in tones
            label = findings.rule(rule_id).words if is_named else None
            width = 2.2 if is_named else 1.1
            axes.plot(
                sweep.taus, weight_T, color=tone, linewidth=width, zorder=2 + is_named, label=label
            )
        _tau_axis(axes, sweep)
        axes.legend(loc="upper right")
        axes.set_ylabel("weight (%)")
        percent_axis(axes, "y")

    return Panel(
        title="weights",
        subtitle=plural(len(sweep.rule_ids), "rule"),
        alt=(
            f"Lines of {plural(len(sweep.rule_ids), 'weight')} over τ: at small τ rule "
            f"{lowest.words}, of lowest entropy, has all of it, at large τ all weights are the "
            "same."
        ),
        draw=draw,
    )


def _accuracy_panel(sweep: TauSweep) -> Panel:
    half = [accuracy.half for accuracy in sweep.accuracies]
    untied = [accuracy.untied for accuracy in sweep.accuracies]
    values = [value for value in (*half, *untied) if value is not None]

    def draw(axes: Axes) -> None:
        # None is NaN, which is not drawn.
        axes.plot(sweep.taus, np.array(half, dtype=float), "C0", label="a tie counts half")
        axes.plot(sweep.taus, np.array(untied, dtype=float), "C1--", label="ties left out")
        low_T, high_T = np.array([sweep.accuracy_lows, sweep.accuracy_highs], dtype=float)
        axes.fill_between(sweep.taus, low_T, high_T, color="C0", alpha=0.14, linewidth=0)
        _tau_axis(axes, sweep)
        axes.legend(loc="best")
        axes.set_ylabel("accuracy of the composed rating (%)")
        percent_axis(axes, "y")

    return Panel(
        title="accuracy of the composed rating",
        subtitle=plural(sweep.num_pairs, "pair"),
        alt=(
            "Two lines over τ: the accuracy of the composed rating lies between "
            f"{percent(min(values))} and {percent(max(values))}."
        ),
        draw=draw,
    )


def _tau_axis(axes: Axes, sweep: TauSweep) -> None:
    axes.set_xscale("log")
    axes.set_xticks(_TAU_TICKS, [f"{tau:g}" for tau in _TAU_TICKS])
    axes.set_xticks([], minor=True)
    axes.set_xlim(min(sweep.taus), max(sweep.taus))
    reference_line(axes, DEFAULT_TAU, "x")
    axes.set_xlabel("temperature τ")
