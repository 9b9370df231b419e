"""`encore analyze` as a function: ratings in, statistics of rules and their correlation out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encore.correlation import Correlation, correlations
from encore.errors import InputError
from encore.ratings_input import RatingsInput, ratings_input
from encore.statistics import POOLED, RuleStats, SourceStatistics, rating_statistics
from encore.warehouse import Warehouse

#: Kernel densities of rules whose numbers of ratings differ by more than this are hard to compare.
_MAX_RATIO_OF_RATINGS = 1.1
#: From here on, ratings that hardly repeat are no accident of a small sample.
_MANY_RATINGS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What `analyze` found.

    Attributes:
        rules: One row per source and rule; rules in rule-set order where it is known, else sorted.
        correlation: One row per source, kind of entropy and tie policy.
        notes: Plain sentences on what limits these figures.
        num_shards: Shards of the run's plan; 0 where there is no plan.
        num_missing_shards: Those that are missing, damaged or failed, and therefore not in it.
    """

    rules: tuple[RuleStats, ...]
    correlation: tuple[Correlation, ...]
    notes: tuple[str, ...] = ()
    num_shards: int = 0
    num_missing_shards: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every planned shard is in it."""
        return self.num_missing_shards == 0

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore analyze --json``."""
        return {
            "rules": [_rule_dict(rule) for rule in self.rules],
            "correlation": [dataclasses.asdict(row) for row in self.correlation],
        }


def analyze(
    ratings: str | Path | Any,
    *,
    by_source: bool = False,
    run: str | None = None,
    judge: str | None = None,
) -> Analysis:
    """Measure each rule: entropy of its ratings, accuracy on people's preferences, and both's r.

    Args:
        ratings: A study, a Parquet file, a folder of them, a pyarrow Table or a pandas DataFrame
            with the columns ``pair_id, source, response, rule_id, rating``.
        by_source: Rows for each source, followed by those of all together.
        run: Which run, where there are several: a unique prefix of its key.
        judge: Which judge, where there are several.

    Raises:
        InputError: Not a ratings table: which file, column and value, and what was expected.
    """
    source = ratings_input(ratings, run=run, judge=judge)
    statistics = read_statistics(source)
    if not by_source:
        statistics = statistics[-1:]
    elif any(part.source == POOLED for part in statistics[:-1]):
        raise InputError(
            f'{source.label}: a source is called "{POOLED}", which stands for all sources '
            "together; rename it or leave out --by-source"
        )
    return Analysis(
        rules=tuple(rule for part in statistics for rule in part.rules),
        correlation=tuple(row for part in statistics for row in correlations(part)),
        notes=tuple(_notes(statistics)),
        num_shards=source.num_shards,
        num_missing_shards=source.num_missing_shards,
    )


def read_statistics(source: RatingsInput) -> tuple[SourceStatistics, ...]:
    """Statistics of each source in an input, then of all together."""
    with Warehouse(source) as warehouse:
        return rating_statistics(warehouse, rule_order=source.rule_order)


def _rule_dict(rule: RuleStats) -> dict[str, Any]:
    return {**dataclasses.asdict(rule), "coverage": rule.coverage}


def _notes(statistics: Sequence[SourceStatistics]) -> Iterator[str]:
    for part in statistics:
        where = "" if part.source == POOLED else f"source {part.source}: "
        notes = (*_spread_notes(part.rules), *_coverage_notes(part.rules))
        yield from (where + note for note in notes)


def _spread_notes(rules: Sequence[RuleStats]) -> Iterator[str]:
    for rule in rules:
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
    counts = [rule.num_ratings for rule in rules if rule.kde_bandwidth is not None]
    if counts and max(counts) > _MAX_RATIO_OF_RATINGS * min(counts):
        yield (
            f"rules have between {min(counts)} and {max(counts)} ratings; differential (KDE) "
            "entropy falls with their number, so compare it between such rules with care"
        )


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
