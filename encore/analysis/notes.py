"""State what limits an analysis, in sentences: missing ratings, constant rules, ties, few rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from encore.analysis.correlation import MIN_RULES, Correlation
from encore.analysis.statistics import RuleStats, SourceStatistics
from encore.core.number_text import count, counted, first_names, percent

#: With as many ratings, it is no accident of a small sample that they hardly repeat.
_MANY_RATINGS = 100
_MAX_NAMES = 3


def analysis_notes(
    statistics: Sequence[SourceStatistics], correlation: Sequence[Correlation]
) -> Iterator[str]:
    """Yield notes on all sources together, then those that hold for a single source only.

    Args:
        statistics: Statistics of the reported sources, all sources together last.
        correlation: Correlations of the same sources.
    """
    notes_by_source = [
        _rating_notes(source) | _pair_notes(source) | _tie_notes(source, correlation)
        for source in statistics
    ]
    yield from notes_by_source[-1].values()
    for source, notes in zip(statistics[:-1], notes_by_source[:-1], strict=True):
        for kind, note in notes.items():
            if kind not in notes_by_source[-1]:
                yield f"source {source.source}: {note}"


def _rating_notes(source: SourceStatistics) -> dict[str, str]:
    notes = {}
    rules = source.rules
    if silent := [rule for rule in rules if rule.num_ratings == 0]:
        notes["silent"] = f"{_names(silent)} without any rating: no entropy"
    if constant := [rule for rule in rules if rule.is_constant]:
        are, rank = ("is", "it ranks") if len(constant) == 1 else ("are", "they rank")
        notes["constant"] = f"{_names(constant)} {are} constant: entropy 0, and {rank} nothing"
    hardly_repeating = [
        rule
        for rule in rules
        if rule.num_ratings >= _MANY_RATINGS and 2 * rule.num_levels > rule.num_ratings
    ]
    if hardly_repeating:
        notes["levels"] = (
            "ratings hardly repeat, so discrete entropy measures their number: "
            f"{_names(hardly_repeating)}; look at the differential entropy, or round the ratings"
        )
    bounded = [
        rule
        for rule, cells in zip(rules, (source.by_level or source).counts.cells, strict=True)
        if cells is None and rule.num_levels
    ]
    if bounded:
        notes["bound"] = (
            "the interval of entropy is an upper bound, because there are too many levels to count "
            f"pairs of them: {_names(bounded)}"
        )
    return notes


def _pair_notes(source: SourceStatistics) -> dict[str, str]:
    notes = {}
    if all(rule.num_pairs == 0 for rule in source.rules):
        notes["no pairs"] = (
            "no rule rated both responses of any pair: entropy only, no accuracy and no "
            "correlation (weights by entropy need no more)"
        )
    elif source.counts.num_one_sided:
        notes["one-sided"] = (
            f"{count(source.counts.num_one_sided)} of {counted(source.counts.num_pairs, 'pair')} "
            "have ratings of one response only: these count for entropy, not for accuracy"
        )
    if silent := [row for row in source.applicability if row.num_not_applicable]:
        seldom = min(silent, key=lambda row: row.applies.value or 0.0)
        notes["applicability"] = (
            f"{len(silent)} of {counted(len(source.rules), 'rule')} do not apply to all responses "
            f"({count(sum(row.num_not_applicable for row in silent))} ratings, no failures), the "
            f"least {seldom.rule_id}: it applies to {percent(seldom.applies.value)} of responses; "
            "entropy, ties, accuracy, verdict and weight of a rule are of those to which it applies"
        )
    partial = [rule for index, rule in enumerate(source.rules) if source.num_missing_pairs(index)]
    if partial:
        scarcest = min(partial, key=lambda rule: rule.num_pairs)
        notes["coverage"] = (
            f"{len(partial)} of {counted(len(source.rules), 'rule')} rated only some pairs fully, "
            f"the least {scarcest.rule_id}: both responses of "
            f"{count(scarcest.num_pairs)} of {count(scarcest.num_pairs_total)} pairs "
            f"({scarcest.coverage:.1%}); a rule's accuracy is over the pairs it rated fully"
        )
    return notes


def _tie_notes(source: SourceStatistics, correlation: Sequence[Correlation]) -> dict[str, str]:
    notes = {}
    if len(source.rules) < MIN_RULES:
        notes["few rules"] = (
            f"{counted(len(source.rules), 'rule')}: no correlation over rules, and so no answer "
            f"to the paper's claim: both take at least {MIN_RULES} rules"
        )
    bands = {
        row.accuracy: f"{row.null_low:+.2f} to {row.null_high:+.2f}"
        for row in correlation
        if (row.source, row.entropy) == (source.source, "discrete")
        and row.null_low is not None
        and row.null_high is not None
    }
    if source.counts.ties_R.any() and {"strict", "inclusive"} <= set(bands):
        notes["ties"] = (
            "strict and inclusive (>=) accuracy are biased by ties: random labels would give an r "
            f"of {bands['strict']} under strict and {bands['inclusive']} under inclusive "
            "(discrete entropy); read half and untied"
        )
    return notes


def _names(rules: Sequence[RuleStats]) -> str:
    """Return ``rule A``, or ``rules A, B, C and 4 more``."""
    names = first_names([rule.rule_id for rule in rules], limit=_MAX_NAMES)
    return f"rule{'s' if len(rules) > 1 else ''} {names}"
