"""Plain sentences on what limits an analysis: missing ratings, constant rules, ties, few pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from encore.analysis.correlation import MIN_RULES, Correlation
from encore.analysis.statistics import POOLED, RuleStats, SourceStatistics

#: Kernel densities of rules whose numbers of ratings differ by more than this are hard to compare.
_MAX_RATIO_OF_RATINGS = 1.1
#: From here on, ratings that hardly repeat are no accident of a small sample.
_MANY_RATINGS = 100
#: Samples of fewer pairs say little about their own spread.
_FEW_PAIRS = 30


def analysis_notes(
    statistics: Sequence[SourceStatistics], correlation: Sequence[Correlation]
) -> Iterator[str]:
    """Notes on each source, then on all together.

    Args:
        statistics: Of the sources that are reported.
        correlation: Of the same sources.
    """
    for part in statistics:
        where = "" if part.source == POOLED else f"source {part.source}: "
        rows = [row for row in correlation if row.source == part.source]
        notes = (
            *_spread_notes(part),
            *_pair_notes(part),
            *_coverage_notes(part.rules),
            *_correlation_notes(part, rows),
        )
        yield from (where + note for note in notes)


def _spread_notes(part: SourceStatistics) -> Iterator[str]:
    for rule, cells in zip(part.rules, part.cells, strict=True):
        if rule.num_ratings == 0:
            yield f"rule {rule.rule_id} has no rating ({rule.num_unparsed} nulls): no entropy"
        elif rule.num_levels == 1:
            yield f"rule {rule.rule_id} is constant: entropy 0, and it ranks nothing"
        elif rule.num_ratings >= _MANY_RATINGS and 2 * rule.num_levels > rule.num_ratings:
            yield (
                f"rule {rule.rule_id} has {rule.num_levels} levels for {rule.num_ratings} ratings: "
                "its discrete entropy measures their number; look at the differential one, or "
                "round the ratings"
            )
        if rule.num_ratings and cells is None:
            yield (
                f"rule {rule.rule_id}: the interval of its entropy is an upper bound, because its "
                f"{rule.num_levels} levels are too many to count pairs of them"
            )
    counts = [rule.num_ratings for rule in part.rules if rule.kde_bandwidth is not None]
    if counts and max(counts) > _MAX_RATIO_OF_RATINGS * min(counts):
        yield (
            f"rules have between {min(counts)} and {max(counts)} ratings; differential (KDE) "
            "entropy falls with their number, so compare it between such rules with care"
        )


def _pair_notes(part: SourceStatistics) -> Iterator[str]:
    num_pairs = part.outcomes.num_pairs
    if all(rule.num_pairs == 0 for rule in part.rules):
        yield (
            "no rule rated both responses of any pair: entropy only, no accuracy and no "
            "correlation (weights by entropy need no more)"
        )
        return
    if part.num_one_sided:
        yield (
            f"{part.num_one_sided} of {num_pairs} pairs have ratings of one response only: these "
            "count for entropy, not for accuracy"
        )
    if num_pairs < _FEW_PAIRS:
        yield f"{num_pairs} pairs are few: intervals from so small a sample are too narrow"


def _coverage_notes(rules: Sequence[RuleStats]) -> Iterator[str]:
    partial = sorted(
        (rule for rule in rules if rule.num_pairs < rule.num_pairs_total),
        key=lambda rule: rule.num_pairs,
    )
    if partial:
        least = partial[0]
        yield (
            f"{len(partial)} of {len(rules)} rules rated only some pairs fully, the least "
            f"{least.rule_id}: both responses of {least.num_pairs} of {least.num_pairs_total} "
            f"pairs ({least.coverage:.1%}); a rule's accuracy is over the pairs it rated fully"
        )


def _correlation_notes(part: SourceStatistics, rows: Sequence[Correlation]) -> Iterator[str]:
    if len(part.rules) < MIN_RULES:
        yield (
            f"{_rules(len(part.rules))}: no correlation and no verdict, which take at least "
            f"{MIN_RULES} rules"
        )
    bands = {
        row.accuracy: f"{row.null_low:+.2f} to {row.null_high:+.2f}"
        for row in rows
        if row.entropy == "discrete" and row.null_low is not None and row.null_high is not None
    }
    if part.outcomes.ties_R.any() and {"strict", "inclusive"} <= set(bands):
        yield (
            "strict and inclusive (>=) accuracy are biased by ties: from labels that mean nothing "
            f"r would be {bands['strict']} under strict and {bands['inclusive']} under inclusive "
            "(discrete entropy); read half and untied"
        )


def _rules(number: int) -> str:
    return "1 rule" if number == 1 else f"{number} rules"
