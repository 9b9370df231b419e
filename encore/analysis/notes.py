"""Plain sentences on what limits an analysis: missing ratings, constant rules, ties, few pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from encore.analysis.correlation import MIN_RULES, Correlation
from encore.analysis.statistics import RuleStats, SourceStatistics

#: Kernel densities of rules whose numbers of ratings differ by more than this are hard to compare.
_MAX_RATIO_OF_RATINGS = 1.1
#: From here on, ratings that hardly repeat are no accident of a small sample.
_MANY_RATINGS = 100
#: Samples of fewer pairs say little about their own spread.
_FEW_PAIRS = 30
_NAMES_SHOWN = 3


def analysis_notes(
    statistics: Sequence[SourceStatistics], correlation: Sequence[Correlation]
) -> Iterator[str]:
    """Notes on all sources together, then those that hold for one source alone.

    Args:
        statistics: Of the sources that are reported, all together last.
        correlation: Of the same sources.
    """
    pooled = _notes(statistics[-1], correlation)
    yield from pooled.values()
    for part in statistics[:-1]:
        for kind, note in _notes(part, correlation).items():
            if kind not in pooled:
                yield f"source {part.source}: {note}"


def _notes(part: SourceStatistics, correlation: Sequence[Correlation]) -> dict[str, str]:
    """What limits the figures of one source, by kind of note."""
    found = _notes_on_ratings(part) | _notes_on_pairs(part)
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
    if part.outcomes.ties_R.any() and {"strict", "inclusive"} <= set(bands):
        found["ties"] = (
            "strict and inclusive (>=) accuracy are biased by ties: from labels that mean nothing "
            f"r would be {bands['strict']} under strict and {bands['inclusive']} under inclusive "
            "(discrete entropy); read half and untied"
        )
    return found


def _notes_on_ratings(part: SourceStatistics) -> dict[str, str]:
    found = {}
    rules = part.rules
    if silent := [rule for rule in rules if rule.num_ratings == 0]:
        found["silent"] = f"{_names(silent)} without any rating: no entropy"
    if constant := [rule for rule in rules if rule.num_ratings and rule.num_levels == 1]:
        is_one = len(constant) == 1
        found["constant"] = (
            f"{_names(constant)} {'is' if is_one else 'are'} constant: entropy 0, and "
            f"{'it ranks' if is_one else 'they rank'} nothing"
        )
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
    bounded = [
        rule
        for rule, cells in zip(rules, part.cells, strict=True)
        if rule.num_ratings and cells is None
    ]
    if bounded:
        found["bound"] = (
            "the interval of entropy is an upper bound, because there are too many levels to count "
            f"pairs of them: {_names(bounded)}"
        )
    counts = [rule.num_ratings for rule in rules if rule.kde_bandwidth is not None]
    if counts and max(counts) > _MAX_RATIO_OF_RATINGS * min(counts):
        found["density"] = (
            f"rules have between {min(counts)} and {max(counts)} ratings; differential (KDE) "
            "entropy falls with their number, so compare it between such rules with care"
        )
    return found


def _notes_on_pairs(part: SourceStatistics) -> dict[str, str]:
    found = {}
    num_pairs = part.outcomes.num_pairs
    if all(rule.num_pairs == 0 for rule in part.rules):
        found["no pairs"] = (
            "no rule rated both responses of any pair: entropy only, no accuracy and no "
            "correlation (weights by entropy need no more)"
        )
    else:
        if part.num_one_sided:
            found["one-sided"] = (
                f"{part.num_one_sided} of {_number(num_pairs, 'pair')} have ratings of one "
                "response only: these count for entropy, not for accuracy"
            )
        if num_pairs < _FEW_PAIRS:
            found["few pairs"] = (
                f"{_number(num_pairs, 'pair')}: intervals from so small a sample are too narrow"
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


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _names(rules: Sequence[RuleStats]) -> str:
    """``rule A``, or a few names, and how many more there are."""
    shown = ", ".join(rule.rule_id for rule in rules[:_NAMES_SHOWN])
    more = len(rules) - _NAMES_SHOWN
    return f"rule{'s' * (len(rules) > 1)} {shown}" + (f" and {more} more" if more > 0 else "")
