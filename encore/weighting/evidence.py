"""What a weighting scheme may look at: statistics of rules, and the rated pairs when it asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from encore.analysis.statistics import RuleStats
from encore.data.study import Study
from encore.errors import InputError
from encore.warehouse import PairRatings
from encore.weighting.vector import Origin

# Suffixes: R rules.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """Statistics of the rules over all sources, in rule order, and a way to the pairs themselves.

    Attributes:
        rules: One per rule; each has at least one rating.
        read_pairs: Reads the ratings of every pair under these rules, in this order. Only schemes
            that learn from labels call it: it holds every rating in memory.
        origin: Where the ratings came from.
        study: The study that they belong to; None for ratings from elsewhere.

    Raises:
        InputError: A rule without a single rating: it has no reward that a weight could count.
    """

    rules: tuple[RuleStats, ...]
    read_pairs: Callable[[], PairRatings]
    origin: Origin = field(default_factory=Origin)
    study: Study | None = None

    def __post_init__(self) -> None:
        for rule in self.rules:
            if rule.entropy_nats is None:
                raise InputError(
                    f"rule {rule.rule_id}: none of its {rule.num_unparsed} ratings is a number, so "
                    "it has no entropy and no weight; leave the rule out of the ratings or rate it "
                    "again"
                )

    @property
    def rule_ids(self) -> tuple[str, ...]:
        """The rules, in order."""
        return tuple(rule.rule_id for rule in self.rules)

    @property
    def entropy_R(self) -> NDArray[np.float64]:
        """Entropy of each rule's ratings in nats, shape [R]."""
        return np.array([rule.entropy_nats for rule in self.rules], dtype=np.float64)

    @property
    def num_pairs(self) -> int:
        """All pairs, also those that a rule did not rate fully."""
        return max(rule.num_pairs_total for rule in self.rules)

    def over(self, pairs: PairRatings) -> Evidence:
        """The same evidence over some pairs.

        The statistics stay those of all pairs: they hold no label that a scheme may learn from.
        """
        return dataclasses.replace(self, read_pairs=lambda: pairs)
