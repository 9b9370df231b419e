"""Equal weights for some of the rules: what single rules, top k and random k have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def equal_weights(places: Sequence[int], *, num_rules: int) -> NDArray[np.float64]:
    """The same weight for the rules at some places, none for the others; shape [R]."""
    weight_R = np.zeros(num_rules)
    weight_R[list(places)] = 1 / len(places)
    return weight_R


def places_by_id(rule_ids: Sequence[str]) -> list[int]:
    """The places of rules in the order of their ids."""
    return sorted(range(len(rule_ids)), key=rule_ids.__getitem__)


def places_by_entropy(entropy_R: NDArray[np.float64], rule_ids: Sequence[str]) -> list[int]:
    """The places of rules from the lowest entropy to the highest; equal ones in order of id."""
    return sorted(range(len(rule_ids)), key=lambda place: (entropy_R[place], rule_ids[place]))
