"""What a weighting scheme may look at: statistics of rules, and the rated pairs when it asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from encore import __version__
from encore.analysis.statistics import RuleStats
from encore.data.study import Study
from encore.errors import InputError
from encore.pair_ratings import PairRatings
from encore.weighting.provenance import Origin, Provenance
from encore.weighting.scheme import WeightingScheme
from encore.weighting.vector import WeightVector

# Suffixes: R rules.

_Floats = NDArray[np.float64]


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
    def entropy_R(self) -> _Floats:
        """Entropy of each rule's ratings in nats, shape [R]."""
        return np.array([rule.entropy_nats for rule in self.rules], dtype=np.float64)

    @property
    def num_pairs(self) -> int:
        """All pairs, also those that a rule did not rate fully."""
        return max(rule.num_pairs_total for rule in self.rules)

    def over(self, pairs: PairRatings, *, places: Sequence[int] | None = None) -> Evidence:
        """The same evidence over some pairs, and over some of the rules (by default all).

        The statistics stay those of all pairs: they hold no label that a scheme may learn from.
        """
        if places is None:
            return dataclasses.replace(self, read_pairs=lambda: pairs)
        some = PairRatings(
            rule_ids=tuple(pairs.rule_ids[place] for place in places),
            source_P=pairs.source_P,
            pair_id_P=pairs.pair_id_P,
            chosen_PR=pairs.chosen_PR[:, places],
            rejected_PR=pairs.rejected_PR[:, places],
        )
        rules = tuple(self.rules[place] for place in places)
        return dataclasses.replace(self, rules=rules, read_pairs=lambda: some)

    def vector(
        self,
        scheme: WeightingScheme,
        weight_R: _Floats,
        *,
        params: Mapping[str, float | str] | None = None,
        num_pairs_used: int | None = None,
    ) -> WeightVector:
        """A scheme's weights of these rules, with what they were made from.

        Args:
            scheme: The scheme.
            weight_R: A weight for each rule, shape [R].
            params: The scheme's parameters, as reported.
            num_pairs_used: Pairs whose labels it learnt from.
        """
        reported = dict(params or {})
        tau = reported.get("tau")
        return WeightVector(
            scheme=scheme.name,
            rule_ids=self.rule_ids,
            weights=tuple(weight_R.tolist()),
            params=reported,
            provenance=Provenance(
                uses_labels=scheme.uses_labels,
                uses_benchmark=scheme.uses_benchmark,
                tau=None if tau is None else float(tau),
                num_ratings=sum(rule.num_ratings for rule in self.rules),
                num_nulls=sum(rule.num_unparsed for rule in self.rules),
                num_pairs=self.num_pairs,
                num_pairs_used=num_pairs_used,
                origin=self.origin,
                encore_version=__version__,
            ),
        )
