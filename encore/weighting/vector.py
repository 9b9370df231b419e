"""A weight vector over rules; one that exists lies on the simplex."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from encore.weighting.provenance import Provenance

#: Sum of weights may differ from 1 by this: rounding over thousands of rules stays far below.
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVector:
    """Weights of rules, in rule order: none negative, sum 1.

    Attributes:
        scheme: The weighting scheme that made it.
        rule_ids: The rules.
        weights: One per rule.
        params: The scheme's parameters, as reported.
        provenance: What it was made from; None for weights set by hand. It takes no part in
            comparing two vectors.

    Raises:
        ValueError: Not a point of the simplex, or not one weight per rule.
    """

    scheme: str
    rule_ids: tuple[str, ...]
    weights: tuple[float, ...]
    params: Mapping[str, float | str] = field(default_factory=dict)
    provenance: Provenance | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.rule_ids:
            raise ValueError(f"weights of scheme {self.scheme}: no rule; expected at least one")
        if len(set(self.rule_ids)) != len(self.rule_ids):
            raise ValueError(f"weights of scheme {self.scheme}: a rule is there more than once")
        if len(self.weights) != len(self.rule_ids):
            raise ValueError(
                f"weights of scheme {self.scheme}: {len(self.weights)} weights for "
                f"{len(self.rule_ids)} rules; expected one each"
            )
        for rule_id, weight in zip(self.rule_ids, self.weights, strict=True):
            if not 0.0 <= weight <= 1.0:  # also refuses NaN
                raise ValueError(
                    f"weights of scheme {self.scheme}: {weight} for rule {rule_id}; expected a "
                    "number in [0, 1]"
                )
        total = math.fsum(self.weights)
        if abs(total - 1.0) > _TOLERANCE:
            raise ValueError(f"weights of scheme {self.scheme}: their sum is {total}; expected 1")

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore weights --json``."""
        return {
            "scheme": self.scheme,
            "params": dict(self.params),
            "rule_ids": list(self.rule_ids),
            "weights": list(self.weights),
            "provenance": None if self.provenance is None else self.provenance.as_dict(),
        }
