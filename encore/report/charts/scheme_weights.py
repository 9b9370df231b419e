"""Figure: the weight that every scheme gives to every rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from encore.report.chart import Chart, DataTable, Missing, Panel
from encore.report.charts.axes import tip
from encore.report.findings import Findings
from encore.report.palette import BAND, BLUE, INK, ORANGE, PAPER
from encore.report.words import number, percent, plural, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from encore.weighting.comparison import SchemeComparison, SchemeRow

#: Full colour is four times an equal share, or a quarter of it and less.
_LOG2_FULL = 2.0
_DARK_CELL = 0.6
#: More rules than this and there is no room for the second decimal.
_MAX_FINE = 12


def scheme_weights(findings: Findings) -> Chart | Missing:
    """Two panels of cells, one row for each rule: weights, and what really moves the reward."""
    comparison = findings.comparison
    if isinstance(comparison, Missing):
        return comparison
    return Chart(
        name="scheme-weights",
        title="Weights by scheme",
        caption=(
            "Weights in per cent: blue above an equal share, orange below, grey none at all. A "
            "rule moves the composed reward by its weight times the spread (standard deviation) of "
            "rating(chosen) − rating(rejected): the second panel shows each rule's share of that. "
            "Schemes with a dagger † learn from the labels they are then measured on. Shown are "
            f"{', '.join(scheme_name(row) for row in comparison.rows)}."
        ),
        panels=(
            _panel(findings, comparison, "weight", _weights),
            _panel(findings, comparison, "share of what moves the reward", _effects),
        ),
        table=_table(findings, comparison),
        columns=2,
    )


def scheme_name(row: SchemeRow) -> str:
    """The row's label, with a dagger where labels or a benchmark enter."""
    return printable(row.label) + (" †" if row.uses_labels or row.uses_benchmark else "")


def _short_name(row: SchemeRow) -> str:
    """Without parameters, for the head of a column."""
    return row.vector.scheme + (" †" if row.uses_labels or row.uses_benchmark else "")


def _weights(row: SchemeRow) -> list[float | None]:
    return list(row.vector.weights)


def _effects(row: SchemeRow) -> list[float | None]:
    """Effective weights as shares of their sum; None where a rule has none."""
    total = math.fsum(value for value in row.effective_weights if value is not None)
    return [
        None if value is None or total == 0 else value / total for value in row.effective_weights
    ]


def _panel(
    findings: Findings,
    comparison: SchemeComparison,
    title: str,
    shares_of: Callable[[SchemeRow], list[float | None]],
) -> Panel:
    rules = [findings.rule(rule.rule_id) for rule in comparison.rules]
    digits = 1 if len(rules) <= _MAX_FINE else 0

    def draw(axes: Axes) -> None:
        for column, row in enumerate(comparison.rows):
            for place, share in enumerate(shares_of(row)):
                tip_text = f"{scheme_name(row)}, {rules[place].words}: {percent(share, digits=2)}"
                _draw_cell(axes, column, place, share, len(rules), digits, tip_text)
        axes.set_xlim(-0.5, len(comparison.rows) - 0.5)
        axes.set_ylim(len(rules) - 0.5, -0.5)
        axes.set_yticks(range(len(rules)), [str(rule.place) for rule in rules])
        axes.xaxis.tick_top()
        axes.set_xticks(
            range(len(comparison.rows)),
            [_short_name(row) for row in comparison.rows],
            rotation=50,
            ha="left",
            rotation_mode="anchor",
        )
        axes.set_ylabel("rule")
        axes.grid(visible=False)
        for spine in axes.spines.values():
            spine.set_visible(False)

    names = ", ".join(scheme_name(row) for row in comparison.rows)
    return Panel(
        title=f"{title} (%)",
        subtitle=plural(comparison.num_pairs_total, "pair"),
        alt=f"Cells of {title} for {plural(len(rules), 'rule')} under the schemes {names}.",
        draw=draw,
        width=max(240, 62 + 34 * len(comparison.rows)),
        height=92 + 23 * len(rules),
    )


def _draw_cell(
    axes: Axes,
    column: int,
    place: int,
    share: float | None,
    num_rules: int,
    digits: int,
    tip_text: str,
) -> None:
    from matplotlib.patches import Rectangle

    tone, strength = _shade(share, num_rules)
    cell = Rectangle(
        (column - 0.47, place - 0.46), 0.94, 0.92, facecolor=tone, alpha=strength, linewidth=0
    )
    axes.add_patch(tip(cell, tip_text))
    axes.text(
        column,
        place,
        "100" if share == 1.0 else number(None if share is None else 100 * share, digits=digits),
        fontsize=8.5,
        ha="center",
        va="center_baseline",
        color=PAPER if tone != BAND and strength > _DARK_CELL else INK,
    )


def _shade(share: float | None, num_rules: int) -> tuple[str, float]:
    """Colour and strength of a cell, by how often the share holds an equal one."""
    if not share:
        return BAND, 0.5
    fold = math.log2(share * num_rules)
    return BLUE if fold > 0 else ORANGE, min(max(abs(fold) / _LOG2_FULL, 0.02), 1.0)


def _table(findings: Findings, comparison: SchemeComparison) -> DataTable:
    columns = ("rule", *(scheme_name(row) for row in comparison.rows))
    shares: Sequence[Sequence[float | None]] = [_weights(row) for row in comparison.rows]
    rows = tuple(
        (
            findings.rule(rule.rule_id).words,
            *(percent(column[place], digits=2) for column in shares),
        )
        for place, rule in enumerate(comparison.rules)
    )
    return DataTable(columns=columns, rows=rows)
