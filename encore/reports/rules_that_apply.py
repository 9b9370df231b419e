"""Show how often each rule applies, and how far ENCORE's weights move if that is not asked."""

from __future__ import annotations

from collections.abc import Mapping

from encore.analysis.analyze import Analysis
from encore.analysis.statistics import POOLED
from encore.core.number_text import MINUS, NONE, percent, percent_interval
from encore.reports.figure_drawing import DataTable
from encore.weighting.weights_if_rated import weights_if_rated


def rules_that_apply(analysis: Analysis, titles: Mapping[str, str]) -> DataTable | None:
    """Return a table of all rules over all sources; None if every rule applies everywhere.

    Args:
        analysis: Analysis of the ratings.
        titles: Titles of the rules, by rule id.
    """
    rows = [row for row in analysis.applicability if row.source == POOLED]
    if not rows:
        return None
    rules = [rule for rule in analysis.rules if rule.source == POOLED]
    weight_by_rule = {row.rule_id: row.weight for row in analysis.answers[-1].rows}
    weights = weights_if_rated(rules, [row.num_not_applicable for row in rows]).tolist()
    return DataTable(
        columns=(
            *("rule", "applies", "95 %", "to chosen", "to rejected", "to both"),
            *("weight", "weight if rated", "moves by"),
        ),
        rows=tuple(
            (
                titles[row.rule_id],
                percent(row.applies.value),
                percent_interval(row.applies.low, row.applies.high),
                *map(
                    percent, (row.applies_to_chosen, row.applies_to_rejected, row.applies_to_both)
                ),
                *_weight_cells(weight_by_rule[row.rule_id], if_rated),
            )
            for row, if_rated in zip(rows, weights, strict=True)
        ),
    )


def _weight_cells(weight: float | None, if_rated: float) -> tuple[str, str, str]:
    """Return both weights and the factor between them."""
    if weight is None:
        return NONE, NONE, NONE
    change = if_rated / weight - 1
    sign = "+" if change >= 0 else MINUS
    return percent(weight), percent(if_rated), f"{sign}{percent(abs(change), digits=0)}"
