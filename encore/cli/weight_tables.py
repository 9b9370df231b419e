"""Tables of `encore weights`: one scheme, all schemes, scheme encore over its temperature."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType

from encore.cli.output import compact_table
from encore.cli.rule_tables import NumberedRules, number, percent, span

if TYPE_CHECKING:
    from encore.weighting.comparison import SchemeComparison, TauSweep
    from encore.weighting.weigh import WeighedRules


def weights_tables(weighed: WeighedRules) -> Iterator[RenderableType]:
    """Weight, effective weight, entropy, accuracy, ties and coverage of every rule."""
    rules = NumberedRules(rule.rule_id for rule in weighed.rules)
    columns = ("weight", "w × sd", "entropy", "levels", "half", "untied", "ties", "cover")
    rows = [
        (
            rule.rule_id,
            number(weight, digits=4),
            number(None if sd is None else weight * sd, digits=4),
            number(rule.entropy_nats),
            rule.num_levels,
            percent(rule.accuracy.half),
            percent(rule.accuracy.untied),
            percent(rule.tie_rate),
            percent(rule.coverage),
        )
        for rule, weight, sd in zip(
            weighed.rules, weighed.vector.weights, weighed.margin_sds, strict=True
        )
    ]
    params = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in weighed.vector.params.items()
    )
    scheme = weighed.vector.scheme + (f" ({params})" if params else "")
    title = f"Weights by scheme {scheme}; leakage: {_leakage(weighed.uses_labels)}"
    yield rules.table(columns, rows, title=title)
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
    columns: tuple[str, ...]
    columns = ("scheme", "leakage", "half", "95 %", "held out", "untied", "beats random")
    rows = [
        (
            row.label,
            _leakage(row.uses_labels),
            percent(row.accuracy.half),
            span(row.accuracy_low, row.accuracy_high, percent),
            percent(row.held_out_accuracy.half) if row.held_out_accuracy else "",
            percent(row.accuracy.untied),
            percent(row.beats_random),
        )
        for row in schemes
    ]
    title = f"Accuracy of the composed ratings, {comparison.num_pairs} pairs"
    if comparison.folds_grouped_by is not None:
        title += f"; held out: {comparison.num_folds} folds by {comparison.folds_grouped_by}"
    yield compact_table(columns, rows, title=title)
    columns = ("by chance", "draws", "half, mean", "95 % of draws")
    drawn = [
        (
            one.scheme,
            one.num_draws,
            percent(one.half_mean),
            span(one.half_low, one.half_high, percent),
        )
        for one in comparison.draws
    ]
    yield compact_table(columns, drawn, title="What chance reaches; leakage: none")
    rules = NumberedRules(rule.rule_id for rule in comparison.rules)
    columns = tuple(
        row.vector.scheme.replace("-", "\n-") + "*" * row.uses_labels for row in schemes
    )
    for title, weights in (
        ("Weights", [row.vector.weights for row in schemes]),
        (
            "Effective weights: weight × sd of rating(chosen) - rating(rejected)",
            [row.effective_weights for row in schemes],
        ),
    ):
        cells = [
            (rule.rule_id, *map(number, of_rule))
            for rule, *of_rule in zip(comparison.rules, *weights, strict=True)
        ]
        yield rules.table(columns, cells, title=f"{title} (* learnt from labels)")
    yield rules.legend()


def sweep_table(sweep: TauSweep) -> Iterator[RenderableType]:
    """Accuracy of ENCORE's composed ratings at each temperature, and how its weights spread."""
    columns = ("τ", "half", "95 %", "untied", "rules in effect", "largest weight")
    first, last = (
        (name, percent(accuracy.half), "", percent(accuracy.untied), "", "")
        for name, accuracy in (
            ("→ 0: lowest entropy", sweep.lowest_entropy_accuracy),
            ("→ ∞: uniform", sweep.uniform_accuracy),
        )
    )
    rows = [
        (
            f"{tau:g}",
            percent(accuracy.half),
            span(low, high, percent),
            percent(accuracy.untied),
            # Perplexity of the weights: R for uniform weights, 1 for a single rule.
            number(math.exp(-math.fsum(w * math.log(w) for w in weights if w > 0)), digits=2),
            number(max(weights)),
        )
        for tau, weights, accuracy, low, high in zip(
            sweep.taus,
            sweep.weights_TR,
            sweep.accuracies,
            sweep.accuracy_lows,
            sweep.accuracy_highs,
            strict=True,
        )
    ]
    title = f"ENCORE over its temperature, {sweep.num_pairs} pairs; leakage: none"
    yield compact_table(columns, [first, *rows, last], title=title)


def _leakage(uses_labels: bool) -> str:
    return "labels" if uses_labels else "none"
