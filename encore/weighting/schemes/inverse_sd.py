"""Inverse sd: weights in proportion to 1 / sd of a rule's ratings; a constant rule gets none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from encore.weighting.scheme import Evidence, SchemeOptions, Weighed, WeightingScheme


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


def _find(evidence: Evidence, _options: SchemeOptions) -> Weighed:
    # Scott's rule has the standard deviation (ddof 1): bandwidth = sd * N^(-1/5).
    sds = [(rule.kde_bandwidth or 0.0) * rule.num_ratings**0.2 for rule in evidence.rules]
    return inverse_sd_weights(np.array(sds)), {}


SCHEME = WeightingScheme(name="inverse-sd", find=_find)
