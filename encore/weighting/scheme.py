"""Define weighting schemes: evidence about rules in, a weight vector out."""

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
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.weight_vector import Origin, Provenance, WeightVector

# Suffixes: R rules.

_Floats = NDArray[np.float64]
#: The weight of each rule, shape [R], and the parameters to report.
SchemeResult = tuple[_Floats, dict[str, float | str]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """Everything that a scheme may read: statistics of the rules over all sources, and the pairs.

    Attributes:
        rules: Statistics of each rule, in rule order; each has at least one rating.
        read_pairs: Reads the ratings of every pair under these rules, in this order. Only schemes
            that learn from labels call it, because it holds every rating in memory.
        correlation_RR: Correlation of the rules' ratings within pairs, shape [R, R]; NaN where a
            rule has ties only. Labels do not enter.
        origin: Origin of the ratings.
        study: The study that the ratings belong to; None for ratings outside a study.

    Raises:
        InputError: A rule has no rating, so it has no reward that a weight could multiply.
    """

    rules: tuple[RuleStats, ...]
    read_pairs: Callable[[], PairRatings]
    correlation_RR: _Floats
    origin: Origin = field(default_factory=Origin)
    study: Study | None = None

    def __post_init__(self) -> None:
        for rule in self.rules:
            if rule.entropy_nats is None:
                reason = f"none of its {rule.num_unparsed} ratings is a number"
                if not rule.num_unparsed:
                    reason = "it applies to no response"
                raise InputError(
                    f"rule {rule.rule_id}: {reason}, so it has no entropy and no weight; leave the "
                    "rule out of the ratings or rate it again"
                )

    @property
    def rule_ids(self) -> tuple[str, ...]:
        """Return the ids of the rules, in order."""
        return tuple(rule.rule_id for rule in self.rules)

    @property
    def entropy_R(self) -> _Floats:
        """Return the entropy of each rule's ratings in nats, shape [R]."""
        return np.array([rule.entropy_nats for rule in self.rules], dtype=np.float64)

    @property
    def num_pairs(self) -> int:
        """Return the number of all pairs, also those that a rule did not rate fully."""
        return max(rule.num_pairs_total for rule in self.rules)

    def rule_indices_by_entropy(self) -> NDArray[np.intp]:
        """Return the indices of the rules by ascending entropy, of equal entropies by id."""
        return np.asarray(np.lexsort((np.array(self.rule_ids), self.entropy_R)))

    def with_pairs(self, pairs: PairRatings) -> Evidence:
        """Return the same evidence with these pairs.

        The statistics stay those of all pairs, because they contain no label to learn from.
        """
        return dataclasses.replace(self, read_pairs=lambda: pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightingScheme:
    """A way to weigh rules.

    The order of the rules does not change their weights. A scheme that uses labels reads only those
    of the pairs in `Evidence.read_pairs`; test pairs are held out there.

    Attributes:
        name: Name on the command line.
        compute: Computes the weights and the parameters to report.
        options: Names of the fields of `SchemeOptions` that it reads.
        uses_labels: True if it learns from people's preferences, so that its accuracy on the same
            preferences is too high.
    """

    name: str
    compute: Callable[[Evidence, SchemeOptions], SchemeResult]
    options: tuple[str, ...] = ()
    uses_labels: bool = False

    def weigh(self, evidence: Evidence, options: SchemeOptions) -> WeightVector:
        """Return the scheme's weights of the rules, with their provenance."""
        weight_R, params = self.compute(evidence, options)
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


def equal_weights(rule_index_K: NDArray[np.intp], *, num_rules: int) -> _Floats:
    """Return equal weights for the rules at these K indices, 0 for all others; shape [R]."""
    weight_R = np.zeros(num_rules)
    weight_R[rule_index_K] = 1 / len(rule_index_K)
    return weight_R
