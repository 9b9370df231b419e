"""Tables of `encore weights`: one scheme, all schemes, scheme encore over its temperature."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType

from encore.cli.output import (
    Cells,
    NumberedRules,
    compact_table,
    number,
    percent,
    record_table,
    span,
)

if TYPE_CHECKING:
    from encore.analysis.statistics import Accuracy
    from encore.weighting.scheme_comparison import SchemeComparison, TauSweep
    from encore.weighting.weigh import WeighedRules


def weights_tables(weighed: WeighedRules) -> Iterator[RenderableType]:
    """Weight, effective weight, entropy, accuracy, ties and coverage of every rule."""
    vector = weighed.vector
    rules = NumberedRules(vector.rule_ids)
    weight_of = dict(zip(vector.rule_ids, vector.weights, strict=True))
    effect_of = {
        rule_id: None if sd is None else weight * sd
        for (rule_id, weight), sd in zip(weight_of.items(), weighed.margin_sds, strict=True)
    }
    params = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in vector.params.items()
    )
    scheme = vector.scheme + (f" ({params})" if params else "")
    cells: Cells = {
        "weight": lambda rule: number(weight_of[rule.rule_id], digits=4),
        "w × sd": lambda rule: number(effect_of[rule.rule_id], digits=4),
        "entropy": lambda rule: number(rule.entropy_nats),
        "levels": lambda rule: rule.num_levels,
        "half": lambda rule: percent(rule.accuracy.half),
        "untied": lambda rule: percent(rule.accuracy.untied),
        "ties": lambda rule: percent(rule.tie_rate),
        "cover": lambda rule: percent(rule.coverage),
    }
    title = f"Weights by scheme {scheme}; leakage: {_leakage(weighed.uses_labels)}"
    yield rules.table(weighed.rules, cells, title=title)
    yield rules.legend()
    if test := weighed.held_out:
        yield (
            f"on held-out pairs: half {percent(test.accuracy.half)} (95 %: "
            f"{percent(test.accuracy_low)} to {percent(test.accuracy_high)}), untied "
            f"{percent(test.accuracy.untied)}; {test.num_pairs} pairs, {test.num_folds} folds "
            f"grouped by {test.grouped_by}"
        )


def comparison_tables(comparison: SchemeComparison) -> Iterator[RenderableType]:
    """What the schemes compose, what chance composes, and the weights, plain and effective."""
    schemes = comparison.rows
    title = f"Accuracy of the composed ratings, {comparison.num_pairs} pairs"
    if comparison.folds_grouped_by is not None:
        title += f"; held out: {comparison.num_folds} folds by {comparison.folds_grouped_by}"
    of_scheme: Cells = {
        "scheme": lambda row: row.label,
        "leakage": lambda row: _leakage(row.uses_labels),
        "half": lambda row: percent(row.accuracy.half),
        "95 %": lambda row: span(row.accuracy_low, row.accuracy_high),
        "held out": lambda row: percent(getattr(row.held_out_accuracy, "half", None)),
        "untied": lambda row: percent(row.accuracy.untied),
        "beats random": lambda row: percent(row.beats_random),
    }
    yield record_table(schemes, of_scheme, title=title)
    of_draws: Cells = {
        "by chance": lambda drawn: drawn.scheme,
        "draws": lambda drawn: drawn.num_draws,
        "half, mean": lambda drawn: percent(drawn.half_mean),
        "95 % of draws": lambda drawn: span(drawn.half_low, drawn.half_high),
    }
    yield record_table(comparison.draws, of_draws, title="What chance reaches; leakage: none")
    rules = NumberedRules(comparison.rule_ids)
    heads = [row.vector.scheme.replace("-", "\n-") + "*" * row.uses_labels for row in schemes]
    effect = "Effective weights: weight × sd of rating(chosen) - rating(rejected)"
    for title, weights in (
        ("Weights", [row.vector.weights for row in schemes]),
        (effect, [row.effective_weights for row in schemes]),
    ):
        figures = zip(rules.number_of.values(), *weights, strict=True)
        rows = [(place, *map(number, of_rule)) for place, *of_rule in figures]
        yield compact_table(("#", *heads), rows, title=f"{title} (* learnt from labels)")
    yield rules.legend()


def sweep_tables(sweep: TauSweep) -> Iterator[RenderableType]:
    """Accuracy of ENCORE's composed ratings at each temperature, and how its weights spread."""

    def ends(name: str, of: Accuracy) -> tuple[str, ...]:
        return (name, percent(of.half), "", percent(of.untied), "", "")

    rows = [ends("→ 0: lowest entropy", sweep.lowest_entropy_accuracy)]
    for place, (tau, weights) in enumerate(zip(sweep.taus, sweep.weights_TR, strict=True)):
        accuracy = sweep.accuracies[place]
        # Perplexity of the weights: R for uniform weights, 1 for a single rule.
        in_effect = math.exp(-math.fsum(w * math.log(w) for w in weights if w > 0))
        rows.append(
            (
                f"{tau:g}",
                percent(accuracy.half),
                span(sweep.accuracy_lows[place], sweep.accuracy_highs[place]),
                percent(accuracy.untied),
                number(in_effect, digits=2),
                number(max(weights)),
            )
        )
    rows.append(ends("→ ∞: uniform", sweep.uniform_accuracy))
    columns = ("τ", "half", "95 %", "untied", "rules in effect", "largest weight")
    title = f"ENCORE over its temperature, {sweep.num_pairs} pairs; leakage: none"
    yield compact_table(columns, rows, title=title)


def _leakage(uses_labels: bool) -> str:
    return "labels" if uses_labels else "none"
