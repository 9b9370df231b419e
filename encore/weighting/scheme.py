"""What a weighting scheme is: evidence about rules in, a weight vector out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from encore.analysis.statistics import RuleStats
from encore.core.errors import InputError
from encore.data.study import Study
from encore.warehouse import PairRatings
from encore.weighting.weight_vector import Origin, Provenance, WeightVector
from encore.weighting.weights_config import DEFAULT_K, DEFAULT_TAU, SchemeOptions

__all__ = ["DEFAULT_K", "DEFAULT_TAU", "Evidence", "SchemeOptions", "Weighed", "WeightingScheme"]

# Suffixes: R rules.

_Floats = NDArray[np.float64]
#: A weight for each rule, shape [R], and the parameters to report.
Weighed = tuple[_Floats, dict[str, float | str]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """What a scheme may look at: statistics of the rules over all sources, and a way to the pairs.

    Attributes:
        rules: One per rule, in rule order; each has at least one rating.
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

    def places_by_entropy(self) -> NDArray[np.intp]:
        """The places of rules from the lowest entropy to the highest; equal ones by id."""
        return np.asarray(np.lexsort((np.array(self.rule_ids), self.entropy_R)))

    def with_pairs(self, pairs: PairRatings) -> Evidence:
        """The same evidence over some pairs.

        The statistics stay those of all pairs: they hold no label that a scheme may learn from.
        """
        return dataclasses.replace(self, read_pairs=lambda: pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightingScheme:
    """A way to weigh rules.

    A scheme gives a rule the same weight wherever it stands among the rules. A scheme that uses
    labels takes those of the pairs in `Evidence.read_pairs` alone: what it is tested on is held out
    there.

    Attributes:
        name: As on the command line.
        find: The scheme itself.
        options: The fields of `SchemeOptions` that it takes.
        uses_labels: Whether people's preferences enter, so that accuracy on them is flattered.
    """

    name: str
    find: Callable[[Evidence, SchemeOptions], Weighed]
    options: tuple[str, ...] = ()
    uses_labels: bool = False

    def weigh(self, evidence: Evidence, options: SchemeOptions) -> WeightVector:
        """The scheme's weights of the rules, with what they were made from."""
        weight_R, params = self.find(evidence, options)
        tau, num_pairs = params.get("tau"), params.get("num_pairs")
        return WeightVector(
            scheme=self.name,
            rule_ids=evidence.rule_ids,
            weights=tuple(weight_R.tolist()),
            params=params,
            provenance=Provenance(
                **dataclasses.asdict(evidence.origin),
                uses_labels=self.uses_labels,
                tau=None if tau is None else float(tau),
                num_ratings=sum(rule.num_ratings for rule in evidence.rules),
                num_nulls=sum(rule.num_unparsed for rule in evidence.rules),
                num_pairs=evidence.num_pairs,
                num_pairs_used=None if num_pairs is None else int(num_pairs),
            ),
        )


def equal_weights(place_K: NDArray[np.intp], *, num_rules: int) -> _Floats:
    """The same weight for the rules at K places, none for the others; shape [R]."""
    weight_R = np.zeros(num_rules)
    weight_R[place_K] = 1 / len(place_K)
    return weight_R
