"""The table of rules: every figure of a rule in one row, with what to sort it by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from encore.analysis.statistics import POOLED, RuleStats
from encore.data.records import slug
from encore.report.drawing import Missing
from encore.report.findings import Findings
from encore.report.words import count, number, percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a cell shows, and what it is sorted by; None sorts last.

    ``below`` is a second, smaller line: an interval, or an id.
    """

    text: str
    value: float | str | None
    below: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column's heading, what it means, and whether it holds numbers."""

    name: str
    meaning: str
    is_number: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SortableTable:
    """Columns and rows of cells in their order. The first two columns name the row."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


_COLUMNS = (
    Column(name="#", meaning="Place in the rule set, counted from 0; figures use it"),
    Column(name="rule", meaning="Title and id", is_number=False),
    Column(name="entropy", meaning="Entropy of the ratings in nats, with its 95 % interval"),
    Column(name="half", meaning="Accuracy, a tie counts half, with its 95 % interval"),
    Column(name="untied", meaning="Accuracy, ties left out, with its 95 % interval"),
    Column(name="ties", meaning="Share of pairs with two equal ratings"),
    Column(name="levels", meaning="Different ratings"),
    Column(name="top level", meaning="Most frequent rating and its share"),
    Column(name="H corr.", meaning="Entropy with Miller and Madow’s correction, in nats"),
    Column(name="H KDE", meaning="Differential entropy of a kernel density, in nats"),
    Column(name="ratings", meaning="Ratings that are not null"),
    Column(name="nulls", meaning="Ratings that are null: no valid reply"),
    Column(name="rated", meaning="Coverage: share of pairs whose two responses are rated"),
)
#: Weights stand behind so many columns, beside what they follow from.
_WEIGHTS_AT = 6
_WEIGHT_COLUMNS = (
    Column(name="weight", meaning="ENCORE's weight at the paper's temperature"),
    Column(
        name="w × sd",
        meaning="Effective weight: the weight times the spread of rating(chosen) − "
        "rating(rejected), which is what moves the composed reward",
    ),
)


def rule_table(findings: Findings) -> SortableTable:
    """One row for each rule, over all sources."""
    weights = _encore_weights(findings)
    rows = []
    for stats in findings.pooled:
        cells = _row(findings, stats)
        found = weights.get(stats.rule_id, ())
        rows.append((*cells[:_WEIGHTS_AT], *found, *cells[_WEIGHTS_AT:]))
    names = _WEIGHT_COLUMNS if weights else ()
    return SortableTable(
        columns=(*_COLUMNS[:_WEIGHTS_AT], *names, *_COLUMNS[_WEIGHTS_AT:]), rows=tuple(rows)
    )


def _row(findings: Findings, stats: RuleStats) -> tuple[Cell, ...]:
    rule = findings.rule(stats.rule_id)
    ends = findings.interval(POOLED, stats.rule_id)
    # An id that follows from the title says nothing new.
    rule_id = "" if stats.rule_id in (rule.title, slug(rule.title)) else stats.rule_id
    half, untied = stats.accuracy.half, stats.accuracy.untied
    top = "" if stats.top_level is None else f"at {stats.top_level:g}"
    return (
        Cell(text=str(rule.place), value=rule.place),
        Cell(text=rule.title, value=rule.title.casefold(), below=rule_id),
        Cell(
            text=number(stats.entropy_nats),
            value=stats.entropy_nats,
            below="" if ends is None else _ends(ends.entropy_low, ends.entropy_high, digits=3),
        ),
        Cell(
            text=percent(half),
            value=half,
            below="" if ends is None else _percent_ends(ends.half_low, ends.half_high),
        ),
        Cell(
            text=percent(untied),
            value=untied,
            below="" if ends is None else _percent_ends(ends.untied_low, ends.untied_high),
        ),
        Cell(text=percent(stats.tie_rate), value=stats.tie_rate),
        Cell(text=count(stats.num_levels), value=stats.num_levels),
        Cell(text=percent(stats.top_level_share), value=stats.top_level_share, below=top),
        Cell(text=number(stats.entropy_miller_madow_nats), value=stats.entropy_miller_madow_nats),
        Cell(text=number(stats.differential_entropy_nats), value=stats.differential_entropy_nats),
        Cell(text=count(stats.num_ratings), value=stats.num_ratings),
        Cell(text=count(stats.num_unparsed), value=stats.num_unparsed),
        Cell(text=percent(stats.coverage), value=stats.coverage),
    )


def _percent_ends(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else _ends(100 * low, 100 * high, digits=1)


def _ends(low: float | None, high: float | None, *, digits: int) -> str:
    """The ends of an interval, as short as a narrow column wants them; neither is negative."""
    if low is None or high is None:
        return ""
    return f"{number(low, digits=digits)}–{number(high, digits=digits)}"


def _encore_weights(findings: Findings) -> dict[str, Sequence[Cell]]:
    """Weight and effective weight of each rule; empty where there are no weights."""
    comparison = findings.comparison
    if isinstance(comparison, Missing):
        return {}
    row = next((row for row in comparison.rows if row.vector.scheme == "encore"), None)
    if row is None:
        return {}
    return {
        rule_id: (
            Cell(text=percent(weight, digits=2), value=weight),
            Cell(text=number(effect, digits=4), value=effect),
        )
        for rule_id, weight, effect in zip(
            row.vector.rule_ids, row.vector.weights, row.effective_weights, strict=True
        )
    }
