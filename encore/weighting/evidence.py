"""What a weighting scheme may look at: statistics of rules, and the rated pairs when it asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from encore.pair_ratings import PairRatings
from encore.statistics import RuleStats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """Statistics of the rules over all sources, in rule order, and a way to the pairs themselves.

    Attributes:
        rules: One per rule.
        read_pairs: Reads the ratings of every pair under these rules, in this order. Only schemes
            that learn from labels call it: it holds every rating in memory.
    """

    rules: tuple[RuleStats, ...]
    read_pairs: Callable[[], PairRatings]

    @property
    def rule_ids(self) -> tuple[str, ...]:
        """The rules, in order."""
        return tuple(rule.rule_id for rule in self.rules)
