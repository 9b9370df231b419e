"""Tables of `encore weights`: one scheme, all schemes, scheme encore over its temperature."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from encore.cli.output import (
    Renderable,
    TableColumns,
    column_tables,
    compact_table,
    percent,
    percent_of,
    record_table,
    rule_legend,
    span,
    span_of,
)
from encore.core.number_text import number, pairs_of_prompts

if TYPE_CHECKING:
    from encore.weighting.label_curve import LabelCurve
    from encore.weighting.scheme_comparison import SchemeComparison, TauSweep
    from encore.weighting.weigh import WeighedRules


def weights_tables(weighed: WeighedRules) -> Iterator[Renderable]:
    """Yield a table of every rule's weight, effective weight, entropy, accuracy and ties."""
    from encore.weighting.scheme_comparison import scheme_label

    vector = weighed.vector
    parts = zip(weighed.rules, vector.weights, weighed.margin_sds, strict=True)
    rows = [
        (
            rule_number,
            number(weight, digits=4),
            number(None if sd is None else weight * sd, digits=4),
            rule.entropy_nats,
            percent(rule.accuracy.half),
            percent(rule.accuracy.untied),
            percent(rule.tie_rate),
        )
        for rule_number, (rule, weight, sd) in enumerate(parts, start=1)
    ]
    columns = ("#", "weight", "w × sd", "entropy", "half", "untied", "ties")
    title = f"Weights by scheme {scheme_label(vector)}; leakage: {_leakage(weighed.uses_labels)}"
    yield compact_table(columns, rows, title=title)
    yield rule_legend(vector.rule_ids)
    yield (
        "w × sd: how much a rule moves the composed reward. A trainer that divides each rule by "
        "its standard deviation (GDPO) uses the weight instead."
    )
    if held_out := weighed.held_out:
        yield (
            f"on held-out pairs: half {percent(held_out.accuracy.half)} (95 %: "
            f"{span(held_out.accuracy_low, held_out.accuracy_high)}), untied "
            f"{percent(held_out.accuracy.untied)}; {held_out.num_pairs:,} pairs, "
            f"{held_out.num_folds} folds grouped by {held_out.grouped_by}"
        )


def comparison_tables(comparison: SchemeComparison) -> Iterator[Renderable]:
    """Yield tables of the schemes' accuracy, of the accuracy of chance, and of the weights."""
    schemes = comparison.rows
    yield f"{pairs_of_prompts(comparison.num_pairs, comparison.num_prompts)}."
    title = "Accuracy of the composed ratings"
    if comparison.folds_grouped_by is not None:
        title += f"; held out: {comparison.num_folds} folds by {comparison.folds_grouped_by}"
    scheme_columns: TableColumns = {
        "scheme": "label",
        "leakage": lambda row: _leakage(row.uses_labels),
        "half": percent_of("accuracy.half"),
        "95 %": span_of("accuracy"),
        "held out": lambda row: percent(getattr(row.held_out_accuracy, "half", None)),
        "untied": percent_of("accuracy.untied"),
        "beats random": percent_of("beats_random"),
    }
    yield record_table(schemes, scheme_columns, title=title)
    draw_columns: TableColumns = {
        "by chance": "scheme",
        "draws": lambda draws: f"{draws.num_draws:,}",
        "half, mean": percent_of("half_mean"),
        "95 % of draws": span_of("half"),
    }
    yield record_table(comparison.draws, draw_columns, title="What chance reaches; leakage: none")
    weights = {
        row.vector.scheme + "*" * row.uses_labels: map(number, row.vector.weights)
        for row in schemes
    }
    yield from column_tables(weights, title="Weights (* learnt from labels)")
    yield rule_legend(comparison.rule_ids)


def sweep_tables(sweep: TauSweep) -> Iterator[Renderable]:
    """Yield a table of accuracy and largest weight of scheme encore at each temperature."""
    yield f"{pairs_of_prompts(sweep.num_pairs, sweep.num_prompts)}."
    taus = ["→ 0: lowest entropy", *(f"{tau:g}" for tau in sweep.taus), "→ ∞: uniform"]
    accuracies = (sweep.lowest_entropy_accuracy, *sweep.accuracies, sweep.uniform_accuracy)
    spans = map(span, sweep.accuracy_lows, sweep.accuracy_highs)
    rows = zip(
        taus,
        [percent(accuracy.half) for accuracy in accuracies],
        ["", *spans, ""],
        [percent(accuracy.untied) for accuracy in accuracies],
        ["", *(number(max(weights)) for weights in sweep.weights), ""],
        strict=True,
    )
    columns = ("τ", "half", "95 %", "untied", "largest weight")
    title = "ENCORE over its temperature; leakage: none"
    yield compact_table(columns, [*rows], title=title)


def label_curve_tables(curve: LabelCurve) -> Iterator[Renderable]:
    """Yield a table of accuracy by number of labels, and from how many on labels help."""
    yield f"{pairs_of_prompts(curve.num_pairs, curve.num_prompts)}."
    rows = [
        (f"shrunk, {num:,} labels", percent(estimate.value), span(estimate.low, estimate.high))
        for num, estimate in zip(curve.num_labels, curve.shrunk, strict=True)
    ]
    for name, estimate in (("encore", curve.encore), ("uniform", curve.uniform)):
        rows.append((name, percent(estimate.value), span(estimate.low, estimate.high)))
    title = f"Accuracy on held-out pairs, grouped by {curve.grouped_by}"
    yield compact_table(("weights", "half", "95 %"), rows, title=title)
    num_labels = curve.num_labels_to_beat
    yield (
        "no number of these labels clearly beats weights without labels"
        if num_labels is None
        else f"from {num_labels:,} labels on, fitted weights clearly beat encore and uniform"
    )


def _leakage(uses_labels: bool) -> str:
    return "labels" if uses_labels else "none"
