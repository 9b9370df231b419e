"""Tables of `encore analyze`: what it found, readable at 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from encore.analysis.analyze import Analysis
from encore.analysis.resampling import Estimate
from encore.analysis.statistics import POOLED, RuleStats
from encore.cli.output import (
    Shown,
    TableColumns,
    percent_of,
    record_table,
    rule_legend,
    rule_table,
    span_of,
)
from encore.core.number_text import number, significant
from encore.weighting.run_comparison import RunComparison

_POLICY_NAMES = {"half": "half", "untied": "untied", "strict": "strict*", "inclusive": ">=*"}
_KINDS = {"discrete": "discrete", "differential": "KDE"}
_LEGEND = (
    "H ± half of its 95 % interval; M-M: corrected for bias (Miller and Madow); KDE: differential "
    "entropy.\n"
    "* biased by ties: were the labels meaningless, r would lie in the null band here, away from "
    "0. Read half and untied, together."
)


def analysis_tables(analysis: Analysis) -> Iterator[Shown]:
    """Entropy, accuracy, correlation and verdicts by source.

    Of ratings with one source alone, only that is shown: all together are the same.
    """
    sources = list(dict.fromkeys(rule.source for rule in analysis.rules))
    rule_ids = list(dict.fromkeys(rule.rule_id for rule in analysis.rules))
    for source in sources[:1] if len(sources) == 2 else sources:
        yield from _source_tables(analysis, rule_ids, source)
    yield rule_legend(rule_ids)
    yield _LEGEND
    yield ""


def comparison_tables(comparison: RunComparison) -> Iterator[Shown]:
    """How far two runs agree, rule by rule."""
    rule_ids = [row.rule_id for row in comparison.rules]
    columns: TableColumns = {
        "both": "num_ratings",
        "equal": percent_of("agreement.value"),
        "r": lambda row: with_margin(row.correlation, digits=2),
        "κ": lambda row: with_margin(row.kappa, digits=2),
        "ΔH": lambda row: with_margin(row.entropy_difference, digits=2),
        "Δ half": lambda row: with_margin(row.accuracy_difference, digits=1, scale=100),
    }
    title = "Two runs: other minus this one, ± half of the 95 % interval (half in points)"
    yield rule_table(rule_ids, comparison.rules, columns, title=title)
    columns = {
        "Δ weight": lambda row: with_margin(row.weight_difference),
        "ties": percent_of("tie_rate.value"),
        "Δ ties": lambda row: with_margin(row.tie_difference, digits=1, scale=100),
    }
    yield rule_table(rule_ids, comparison.rules, columns, title="Weights and ties")
    yield rule_legend(rule_ids)
    yield f"{comparison.sentence}."
    yield "κ: Cohen's kappa with squared differences; weights at tau 2."


def _source_tables(analysis: Analysis, rule_ids: Sequence[str], source: str) -> Iterator[Shown]:
    where = "all sources" if source == POOLED else f"source {source}"
    rules = [rule for rule in analysis.rules if rule.source == source]
    interval_of = {row.rule_id: row for row in analysis.intervals if row.source == source}

    def estimate(name: str, value: float | None, rule: RuleStats) -> Estimate:
        low, high = attrgetter(f"{name}_low", f"{name}_high")(interval_of[rule.rule_id])
        return Estimate(value=value, low=low, high=high)

    def accuracy(policy: str, rule: RuleStats) -> str:
        found = estimate(policy, getattr(rule.accuracy, policy), rule)
        return with_margin(found, digits=1, scale=100)

    entropies: TableColumns = {
        "H": lambda rule: with_margin(estimate("entropy", rule.entropy_nats, rule)),
        "M-M": "entropy_miller_madow_nats",
        "KDE": "differential_entropy_nats",
        "levels": "num_levels",
        "ratings": "num_ratings",
        "nulls": "num_unparsed",
    }
    yield rule_table(rule_ids, rules, entropies, title=f"Entropy of ratings in nats, {where}")
    accuracies: dict[str, Any] = {
        name: partial(accuracy, policy) for policy, name in _POLICY_NAMES.items()
    }
    accuracies |= {"ties": percent_of("tie_rate"), "cover": percent_of("coverage")}
    title = f"Accuracy in % (± half of its 95 % interval) by tie policy, {where}"
    yield rule_table(rule_ids, rules, accuracies, title=title)
    correlations: TableColumns = {
        "entropy, accuracy": lambda r: f"{_KINDS[r.entropy]}, {_POLICY_NAMES[r.accuracy]}",
        "r": "pearson_r",
        "p": lambda row: significant(row.p_value),
        "95 %": span_of("ci", significant),
        "Spearman": "spearman_rho",
        "null band": span_of("null", significant),
    }
    found = [row for row in analysis.correlation if row.source == source]
    title = f"Correlation of entropy (+H) with accuracy over rules, {where}"
    yield record_table(found, correlations, title=title)
    for one in analysis.verdicts:
        if one.source == source:
            verdict = f"Verdict ({_KINDS[one.entropy]} entropy): {one.verdict}."
            yield f"{verdict} In words: {one.reason}."
    yield ""


def with_margin(found: Estimate, *, digits: int = 3, scale: float = 1) -> str:
    """A figure and half of its interval."""
    show = partial(number, digits=digits)
    if found.value is None or found.low is None or found.high is None:
        return show(None if found.value is None else scale * found.value)
    return f"{show(scale * found.value)} ±{show(scale * (found.high - found.low) / 2)}"
