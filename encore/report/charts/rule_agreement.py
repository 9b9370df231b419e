"""Figure: which rules side with the same responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from encore.analysis.statistics import POOLED
from encore.report.chart import Chart, DataTable, Missing, Panel
from encore.report.charts.axes import swatch, tip
from encore.report.findings import Findings
from encore.report.palette import BAND, BLUE, INK, ORANGE, PAPER
from encore.report.words import count, number, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: With more rules than this the numbers do not fit their cells.
_MAX_WRITTEN = 12
#: From this share of full colour on, text is set in the colour of the ground.
_DARK_CELL = 0.55


def rule_agreement(findings: Findings) -> Chart | Missing:
    """One panel: a triangle of cells, one for each two rules."""
    if len(findings.rules) < 2:
        return Missing(reason="There is one rule only.")
    cosine_RR = findings.agreement.cosine_RR
    below = cosine_RR[np.tril_indices(len(cosine_RR), k=-1)]
    found = below[np.isfinite(below)]
    if len(found) == 0:
        return Missing(reason="No two rules ever prefer a response of the same pair.")
    return Chart(
        name="rule-agreement",
        title="Do rules decide alike?",
        caption=(
            "Correlation between rules: the cosine of their signs of rating(chosen) − "
            "rating(rejected) over all pairs, 1 where two rules always prefer the same response, "
            "0 where they do not depend on each other. Rules that decide alike are not "
            "independent evidence, which is why the null band flips whole pairs."
        ),
        panels=(_panel(findings, cosine_RR, found),),
        table=_table(findings, cosine_RR),
        columns=1,
    )


def _panel(findings: Findings, cosine_RR: NDArray[np.float64], found: NDArray[np.float64]) -> Panel:
    num_rules = len(cosine_RR)

    def draw(axes: Axes) -> None:
        for row in range(1, num_rules):
            for column in range(row):
                _draw_cell(axes, findings, cosine_RR, row, column)
        axes.set_xlim(-0.5, num_rules - 1.5)
        axes.set_ylim(num_rules - 0.5, 0.5)
        axes.set_aspect("equal")
        axes.set_xticks(range(num_rules - 1))
        axes.set_yticks(range(1, num_rules))
        axes.grid(visible=False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set_xlabel("rule")
        axes.set_ylabel("rule")
        handles = [
            swatch(colour, label, alpha=alpha)
            for label, colour, alpha in (
                ("1, always alike", BLUE, 1.0),
                ("0.5", BLUE, 0.5),
                ("−0.5, against each other", ORANGE, 0.5),
            )
        ]
        axes.legend(handles=handles, loc="upper right", handlelength=1)

    return Panel(
        title=findings.source_name(POOLED),
        subtitle=f"{plural(findings.agreement.num_pairs, 'pair')}",
        alt=(
            f"Triangle of cells for {plural(num_rules, 'rule')}: correlations of their decisions "
            f"lie between {number(float(found.min()), digits=2)} and "
            f"{number(float(found.max()), digits=2)}, median "
            f"{number(float(np.median(found)), digits=2)}."
        ),
        draw=draw,
        width=350,
        height=365,
    )


def _draw_cell(
    axes: Axes, findings: Findings, cosine_RR: NDArray[np.float64], row: int, column: int
) -> None:
    from matplotlib.patches import Rectangle

    value = float(cosine_RR[row, column])
    is_known = bool(np.isfinite(value))
    strength = min(abs(value), 1.0) if is_known else 1.0
    tone = BLUE if value >= 0 else ORANGE
    cell = Rectangle(
        (column - 0.47, row - 0.47),
        0.94,
        0.94,
        facecolor=tone if is_known else BAND,
        alpha=max(strength, 0.04),
        linewidth=0,
    )
    names = f"{findings.rules[row].words} and {findings.rules[column].words}"
    axes.add_patch(tip(cell, f"{names}: {number(value if is_known else None, digits=2)}"))
    if len(cosine_RR) <= _MAX_WRITTEN:
        axes.text(
            column,
            row,
            number(value if is_known else None, digits=2),
            fontsize=8,
            ha="center",
            va="center",
            color=PAPER if is_known and strength > _DARK_CELL else INK,
        )


def _table(findings: Findings, cosine_RR: NDArray[np.float64]) -> DataTable:
    gram_RR = findings.agreement.sign_gram_RR
    rows = tuple(
        (
            rule.words,
            count(int(gram_RR[place, place])),
            *(
                number(float(value) if np.isfinite(value) else None, digits=2)
                for value in cosine_RR[place]
            ),
        )
        for place, rule in enumerate(findings.rules)
    )
    columns = ("rule", "untied pairs", *(str(rule.place) for rule in findings.rules))
    return DataTable(columns=columns, rows=rows)
