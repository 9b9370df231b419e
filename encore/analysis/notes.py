"""Plain sentences on what limits an analysis: missing ratings, constant rules, ties, few rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from encore.analysis.correlation import MIN_RULES, Correlation
from encore.analysis.statistics import RuleStats, SourceStatistics

#: From here on, ratings that hardly repeat are no accident of a small sample.
_MANY_RATINGS = 100
_NAMES_SHOWN = 3


def analysis_notes(
    statistics: Sequence[SourceStatistics], correlation: Sequence[Correlation]
) -> Iterator[str]:
    """Notes on all sources together, then those that hold for one source alone.

    Args:
        statistics: Of the sources that are reported, all together last.
        correlation: Of the same sources.
    """
    notes = [
        _about_ratings(part) | _about_pairs(part) | _about_ties(part, correlation)
        for part in statistics
    ]
    yield from notes[-1].values()
    for part, own in zip(statistics[:-1], notes[:-1], strict=True):
        for kind, note in own.items():
            if kind not in notes[-1]:
                yield f"source {part.source}: {note}"


def _about_ratings(part: SourceStatistics) -> dict[str, str]:
    found = {}
    rules = part.rules
    if silent := [rule for rule in rules if rule.num_ratings == 0]:
        found["silent"] = f"{_names(silent)} without any rating: no entropy"
    if constant := [rule for rule in rules if rule.num_levels == 1]:
        are, rank = ("is", "it ranks") if len(constant) == 1 else ("are", "they rank")
        found["constant"] = f"{_names(constant)} {are} constant: entropy 0, and {rank} nothing"
    many = [
        rule
        for rule in rules
        if rule.num_ratings >= _MANY_RATINGS and 2 * rule.num_levels > rule.num_ratings
    ]
    if many:
        found["levels"] = (
            f"ratings hardly repeat, so discrete entropy measures their number: {_names(many)}; "
            "look at the differential entropy, or round the ratings"
        )
    is_bounded = [cells is None for cells in part.counts.cells]
    if bounded := [r for r, is_so in zip(rules, is_bounded, strict=True) if is_so and r.num_levels]:
        found["bound"] = (
            "the interval of entropy is an upper bound, because there are too many levels to count "
            f"pairs of them: {_names(bounded)}"
        )
    return found


def _about_pairs(part: SourceStatistics) -> dict[str, str]:
    found = {}
    if all(rule.num_pairs == 0 for rule in part.rules):
        found["no pairs"] = (
            "no rule rated both responses of any pair: entropy only, no accuracy and no "
            "correlation (weights by entropy need no more)"
        )
    elif part.counts.num_one_sided:
        found["one-sided"] = (
            f"{part.counts.num_one_sided} of {_number(part.counts.num_pairs, 'pair')} have ratings "
            "of one response only: these count for entropy, not for accuracy"
        )
    if partial := [rule for rule in part.rules if rule.num_pairs < rule.num_pairs_total]:
        least = min(partial, key=lambda rule: rule.num_pairs)
        found["coverage"] = (
            f"{len(partial)} of {_number(len(part.rules), 'rule')} rated only some pairs fully, "
            f"the least {least.rule_id}: both responses of {least.num_pairs} of "
            f"{least.num_pairs_total} pairs ({least.coverage:.1%}); a rule's accuracy is over the "
            "pairs it rated fully"
        )
    return found


def _about_ties(part: SourceStatistics, correlation: Sequence[Correlation]) -> dict[str, str]:
    found = {}
    if len(part.rules) < MIN_RULES:
        found["few rules"] = (
            f"{_number(len(part.rules), 'rule')}: no correlation and no verdict, which take at "
            f"least {MIN_RULES} rules"
        )
    bands = {
        row.accuracy: f"{row.null_low:+.2f} to {row.null_high:+.2f}"
        for row in correlation
        if (row.source, row.entropy) == (part.source, "discrete")
        and row.null_low is not None
        and row.null_high is not None
    }
    if part.counts.ties_R.any() and {"strict", "inclusive"} <= set(bands):
        found["ties"] = (
            "strict and inclusive (>=) accuracy are biased by ties: from labels that mean nothing "
            f"r would be {bands['strict']} under strict and {bands['inclusive']} under inclusive "
            "(discrete entropy); read half and untied"
        )
    return found


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _names(rules: Sequence[RuleStats]) -> str:
    """``rule A``, or a few names, and how many more there are."""
    shown = ", ".join(rule.rule_id for rule in rules[:_NAMES_SHOWN])
    more = len(rules) - _NAMES_SHOWN
    return f"rule{'s' * (len(rules) > 1)} {shown}" + (f" and {more} more" if more > 0 else "")
