"""What an export's scores are made of: a model's heads, or what it was composed of before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from encore.export.records import Composition
from encore.model.export_file import COMPOSED, Composed

if TYPE_CHECKING:
    from encore.model.opening import OpenedModel

#: Weights from a file may be rounded in their last digits.
_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules behind the scores of an export.

    Attributes:
        mean_by_rule: What was taken from each rule's targets.
        weights: Of the rules in the one score; None: every rule has a score of its own.
        composition: Where the weights come from; None where nobody said.
    """

    mean_by_rule: Mapping[str, float]
    weights: Mapping[str, float] | None
    composition: Composition | None

    @property
    def mean_of_reward(self) -> float | None:
        """Σ w_k mean_k, which was taken from the one score; None for several."""
        if self.weights is None:
            return None
        return sum(self.weights[rule] * mean for rule, mean in self.mean_by_rule.items())

    @property
    def is_average(self) -> bool:
        """Whether the one score is an average of ratings, so that it has their scale."""
        weights = () if self.weights is None else tuple(self.weights.values())
        return min(weights, default=-1.0) >= 0 and abs(math.fsum(weights) - 1) <= _SUM_TOLERANCE


def rules_of(
    source: OpenedModel,
    *,
    weights: Mapping[str, float] | None,
    composition: Composition | None,
) -> Rules:
    """The rules of an export.

    A model that was opened from a composed export has one head left; what that was folded from
    stays known through every further export.

    Args:
        source: The model to export.
        weights: Of its heads; None: they stay apart.
        composition: Where these weights come from.
    """
    model = source.model
    earlier: Composed | None = source.metadata.get(COMPOSED)
    if earlier is None:
        means = dict(zip(model.head_ids, model.mean_R.tolist(), strict=True))
        return Rules(mean_by_rule=means, weights=weights, composition=composition)
    factor = 1.0 if weights is None else weights[model.head_ids[0]]
    scaled = {rule: factor * weight for rule, weight in earlier["weights"].items()}
    found = None
    if earlier["scheme"] is not None:
        found = Composition(
            weights=scaled,
            scheme=earlier["scheme"],
            params=earlier["params"],
            entropies=earlier["entropy_nats"],
            provenance=earlier["weights_provenance"],
        )
        if factor != 1.0:
            found = replace(found, params={**found.params, "times": factor})
    return Rules(mean_by_rule=earlier["mean"], weights=scaled, composition=found)
