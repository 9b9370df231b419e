"""Inverse sd: the wider a rule's ratings spread, the lower its weight."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from encore.analysis.statistics import RuleStats
from encore.weighting.evidence import Evidence
from encore.weighting.scheme import SchemeOptions, Weighed, WeightingScheme


def inverse_sd_weights(sd_R: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights in proportion to 1 / sd, shape [R].

    A constant rule (sd 0) gets none: its share would be infinite, and it ranks nothing. If all are
    constant none differs from another, and the weights are uniform.

    Args:
        sd_R: Standard deviation of each rule's ratings, shape [R].
    """
    varies_R = sd_R > 0
    if not varies_R.any():
        return np.full(len(sd_R), 1 / len(sd_R))
    mass_R = np.zeros(len(sd_R))
    # Relative to the smallest, so that no quotient can overflow.
    mass_R[varies_R] = sd_R[varies_R].min() / sd_R[varies_R]
    return np.asarray(mass_R / mass_R.sum(), dtype=np.float64)


def _rating_sd(rule: RuleStats) -> float:
    """Standard deviation (ddof 1) of a rule's ratings, chosen and rejected pooled; 0 if constant.

    Scott's rule has it: bandwidth = sd * N^(-1/5).
    """
    return float((rule.kde_bandwidth or 0.0) * rule.num_ratings**0.2)


def _find(evidence: Evidence, _options: SchemeOptions) -> Weighed:
    return inverse_sd_weights(np.array([_rating_sd(rule) for rule in evidence.rules])), {}


SCHEME = WeightingScheme(
    name="inverse-sd",
    summary="in proportion to 1 / sd of the ratings; a constant rule gets nothing",
    find=_find,
)
