"""Inverse sd: weights in proportion to 1 / sd of a rule's ratings; 0 for a constant rule."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from encore.weighting.scheme import Evidence, SchemeResult, WeightingScheme
from encore.weighting.scheme_options import SchemeOptions


def inverse_sd_weights(sd_R: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return weights in proportion to 1 / sd, shape [R].

    A constant rule (sd 0) gets 0: its share would be infinite, and it ranks nothing. If all rules
    are constant, the weights are uniform.

    Args:
        sd_R: Standard deviation of each rule's ratings, shape [R].
    """
    varies_R = sd_R > 0
    if not varies_R.any():
        return np.full(len(sd_R), 1 / len(sd_R))
    mass_R = np.zeros(len(sd_R))
    # Divided by the smallest sd, so that no quotient can overflow.
    mass_R[varies_R] = sd_R[varies_R].min() / sd_R[varies_R]
    return np.asarray(mass_R / mass_R.sum(), dtype=np.float64)


def _compute(evidence: Evidence, _options: SchemeOptions) -> SchemeResult:
    # The bandwidth is Scott's, sd * N^(-1/5), with the standard deviation of ddof 1.
    sds = [(rule.kde_bandwidth or 0.0) * rule.num_ratings**0.2 for rule in evidence.rules]
    return inverse_sd_weights(np.array(sds)), {}


SCHEME = WeightingScheme(name="inverse-sd", compute=_compute)
