"""What a weighting scheme is: evidence about rules in, a weight vector out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from encore.weighting.vector import Provenance, WeightVector
from encore.weighting.weights_config import DEFAULT_K, DEFAULT_TAU, SchemeOptions

if TYPE_CHECKING:
    from encore.weighting.evidence import Evidence

__all__ = ["DEFAULT_K", "DEFAULT_TAU", "SchemeOptions", "Weighed", "WeightingScheme", "leakage"]

_Floats = NDArray[np.float64]
#: A weight for each rule, shape [R], and the parameters to report.
Weighed = tuple[_Floats, dict[str, float | str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightingScheme:
    """A way to weigh rules.

    A scheme gives a rule the same weight wherever it stands among the rules. A scheme that uses
    labels takes them from `Evidence.read_pairs` alone: what it is tested on is held out there.

    Attributes:
        name: As on the command line.
        summary: One line on what it does.
        find: The scheme itself.
        options: The fields of `SchemeOptions` that it takes.
        uses_labels: Whether people's preferences enter, so that accuracy on them is flattered.
        uses_benchmark: Whether a benchmark's answers enter, so that its score is flattered.
    """

    name: str
    summary: str
    find: Callable[[Evidence, SchemeOptions], Weighed]
    options: tuple[str, ...] = ()
    uses_labels: bool = False
    uses_benchmark: bool = False

    @property
    def leakage(self) -> str:
        """What it sees that accuracy is measured with, for a table."""
        return leakage(uses_labels=self.uses_labels, uses_benchmark=self.uses_benchmark)

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
                uses_labels=self.uses_labels,
                uses_benchmark=self.uses_benchmark,
                tau=None if tau is None else float(tau),
                num_ratings=sum(rule.num_ratings for rule in evidence.rules),
                num_nulls=sum(rule.num_unparsed for rule in evidence.rules),
                num_pairs=evidence.num_pairs,
                num_pairs_used=None if num_pairs is None else int(num_pairs),
                origin=evidence.origin,
            ),
        )


def leakage(*, uses_labels: bool, uses_benchmark: bool) -> str:
    """The leakage flag in words: what a scheme sees of the answers it is measured by."""
    seen = {"labels": uses_labels, "benchmark": uses_benchmark}
    return " and ".join(name for name, is_seen in seen.items() if is_seen) or "none"


def equal_weights(places: Sequence[int], *, num_rules: int) -> _Floats:
    """The same weight for the rules at some places, none for the others; shape [R]."""
    weight_R = np.zeros(num_rules)
    weight_R[list(places)] = 1 / len(places)
    return weight_R


def places_by_id(rule_ids: Sequence[str]) -> list[int]:
    """The places of rules in the order of their ids."""
    return sorted(range(len(rule_ids)), key=rule_ids.__getitem__)


def places_by_entropy(entropy_R: _Floats, rule_ids: Sequence[str]) -> list[int]:
    """The places of rules from the lowest entropy to the highest; equal ones in order of id."""
    return sorted(range(len(rule_ids)), key=lambda place: (entropy_R[place], rule_ids[place]))
