"""Tables of `encore weights`: one scheme, all schemes, scheme encore over its temperature."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from encore.cli.output import compact_table
from encore.cli.rule_tables import NumberedRules, number, percent, percent_span

if TYPE_CHECKING:
    from encore.weighting.comparison import SchemeComparison, SchemeRow
    from encore.weighting.folds import HeldOut
    from encore.weighting.sweep import TauSweep
    from encore.weighting.weigh import WeighedRules


def weights_table(weighed: WeighedRules) -> Group:
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
    params = ", ".join(f"{name} {_short(value)}" for name, value in weighed.vector.params.items())
    scheme = weighed.vector.scheme + (f" ({params})" if params else "")
    title = f"Weights by scheme {scheme}; leakage: {weighed.leakage}"
    return Group(rules.table(columns, rows, title=title), rules.legend())


def held_out_line(test: HeldOut) -> str:
    """Accuracy on pairs that the weights were not learnt from."""
    low, high = test.outcome.interval
    return (
        f"on held-out pairs: half {percent(test.accuracy.half)} (95 %: {percent(low)} to "
        f"{percent(high)}), untied {percent(test.accuracy.untied)}; {test.outcome.num_pairs} "
        f"pairs, {test.num_folds} folds grouped by {test.grouped_by}"
    )


def comparison_tables(comparison: SchemeComparison) -> Iterator[Table | Text]:
    """What the schemes compose, what chance composes, and the weights, plain and effective."""
    rules = NumberedRules(rule.rule_id for rule in comparison.rules)
    yield _accuracy_table(comparison)
    yield _draws_table(comparison)
    yield _rules_table(
        comparison,
        rules,
        lambda row: [number(weight) for weight in row.vector.weights],
        title="Weights",
    )
    yield _rules_table(
        comparison,
        rules,
        lambda row: [number(weight) for weight in row.effective_weights],
        title="Effective weights: weight × sd of rating(chosen) - rating(rejected)",
    )
    yield rules.legend()


def sweep_table(sweep: TauSweep) -> Table:
    """Accuracy of ENCORE's composed ratings at each temperature, and how its weights spread."""
    columns = ("τ", "half", "95 %", "untied", "rules in effect", "largest weight")
    ends = [
        (name, percent(accuracy.half), "", percent(accuracy.untied), "", "")
        for name, accuracy in (
            ("→ 0: lowest entropy", sweep.lowest_entropy_accuracy),
            ("→ ∞: uniform", sweep.uniform_accuracy),
        )
    ]
    rows = [
        (
            f"{tau:g}",
            percent(accuracy.half),
            percent_span(low, high),
            percent(accuracy.untied),
            f"{_num_in_effect(weights):.2f}",
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
    return compact_table(columns, [ends[0], *rows, ends[1]], title=title)


def _accuracy_table(comparison: SchemeComparison) -> Table:
    columns = ("scheme", "leakage", "half", "95 %", "held out", "untied", "beats random")
    rows = [
        (
            row.label,
            row.leakage,
            percent(row.accuracy.half),
            percent_span(row.accuracy_low, row.accuracy_high),
            percent(row.held_out_accuracy.half) if row.held_out_accuracy else "",
            percent(row.accuracy.untied),
            percent(row.beats_random),
        )
        for row in comparison.rows
    ]
    title = f"Accuracy of the composed ratings, {comparison.num_pairs} pairs"
    if comparison.folds_grouped_by is not None:
        title += f"; held out: {comparison.num_folds} folds by {comparison.folds_grouped_by}"
    return compact_table(columns, rows, title=title)


def _draws_table(comparison: SchemeComparison) -> Table:
    columns = ("by chance", "draws", "half, mean", "95 % of draws")
    rows = [
        (draws.scheme, draws.num_draws, percent(draws.mean), percent_span(*draws.spread))
        for draws in comparison.draws
    ]
    return compact_table(columns, rows, title="What chance reaches; leakage: none")


def _rules_table(
    comparison: SchemeComparison,
    rules: NumberedRules,
    cells_of: Callable[[SchemeRow], Sequence[str]],
    *,
    title: str,
) -> Table:
    """A row for each rule, a column for each scheme; a star marks what has seen answers."""
    heads = [
        row.vector.scheme.replace("-", "\n-") + ("" if row.leakage == "none" else "*")
        for row in comparison.rows
    ]
    columns = [cells_of(row) for row in comparison.rows]
    rows = [
        (rule.rule_id, *(column[place] for column in columns))
        for place, rule in enumerate(comparison.rules)
    ]
    return rules.table(heads, rows, title=f"{title} (* learnt from labels)")


def _num_in_effect(weights: Sequence[float]) -> float:
    """Perplexity of weights: R for uniform weights, 1 for a single rule."""
    return math.exp(-math.fsum(weight * math.log(weight) for weight in weights if weight > 0))


def _short(value: float | str) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
