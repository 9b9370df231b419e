"""Tables of evidence about the weights: how many ratings are enough, is the judge stable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from encore.cli.analyze import number, percent
from encore.cli.output import compact_table, visible

if TYPE_CHECKING:
    from rich.table import Table

    from encore.evidence.convergence import ConvergenceCurve
    from encore.evidence.retest import Retest


def convergence_table(curve: ConvergenceCurve) -> Group:
    """The curve of weight error against sample size, and what it recommends."""
    columns = ("pairs", "ratings a rule", "median", "95 %", "95 %, true")
    rows = [
        (
            f"{point.num_pairs:,}",
            f"{point.num_ratings_per_rule:,}",
            _fine_percent(point.error_median),
            _fine_percent(point.error_95),
            _fine_percent(point.error_95_population),
        )
        for point in curve.points
    ]
    table = compact_table(
        columns, rows, title="Largest error of a weight, from samples of these pairs"
    )
    lines = []
    if curve.points:
        lines.append(
            f"{curve.num_draws} samples of whole pairs of each size; errors against the weights "
            "of all the pairs (median, 95 %) and, corrected for the sample being part of them, "
            "against the true weights, those of all pairs of this kind."
        )
    lines.extend(dict.fromkeys(_sentence(one.sentence) for one in curve.recommendations))
    lines.extend(f"Note: {note}." for note in curve.notes)
    return Group(*([table] if rows else []), *(Text(visible(line)) for line in lines))


def retest_table(retest: Retest) -> Group:
    """Agreement of two ratings of the same responses, and what it does to the weights."""
    lines = [
        _sentence(retest.sentence),
        (
            f"Not compared: {retest.num_first_only:,} responses rated the first time only, "
            f"{retest.num_repeated_only:,} in the repetition only."
        ),
        *(f"Note: {note}." for note in retest.notes),
    ]
    return Group(
        _agreement_table(retest), _shift_table(retest), *(Text(visible(line)) for line in lines)
    )


def _agreement_table(retest: Retest) -> Table:
    columns = ("rule", "twice", "1st only", "2nd only", "equal", "|diff|", "κ", "κ²")
    rows = [
        (
            row.rule_id,
            row.num_ratings,
            row.num_missing_repeated,
            row.num_missing_first,
            percent(row.agreement),
            number(row.mean_absolute_difference),
            number(row.kappa, digits=2),
            number(row.weighted_kappa, digits=2),
        )
        for row in retest.rows
    ]
    title = (
        f"Two ratings of {retest.num_responses:,} responses (κ: Cohen's kappa; κ²: with squared "
        "differences)"
    )
    return compact_table(columns, rows, title=title)


def _shift_table(retest: Retest) -> Table:
    columns = ("rule", "entropy", "again", "weight", "again", "change", "95 %")
    rows = [
        (
            row.rule_id,
            number(row.entropy_first),
            number(row.entropy_repeated),
            number(row.weight_first, digits=4),
            number(row.weight_repeated, digits=4),
            percent(row.weight_change),
            _interval(row.weight_change_low, row.weight_change_high),
        )
        for row in retest.rows
    ]
    title = f"Entropy and ENCORE's weights by both (tau {retest.tau:g})"
    return compact_table(columns, rows, title=title)


def _interval(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{low:.1%}…{high:.1%}"


def _fine_percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.2%}"


def _sentence(text: str) -> str:
    """With a capital and a full stop; the texts are also parts of longer ones."""
    return text[:1].upper() + text[1:] + "."
