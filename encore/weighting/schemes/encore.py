"""ENCORE: the higher the entropy of a rule's ratings, the lower its weight."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from encore.weighting.scheme import Evidence, SchemeResult, WeightingScheme
from encore.weighting.scheme_options import DEFAULT_TAU, SchemeOptions


def entropy_weights(
    entropy_R: NDArray[np.float64], *, tau: float = DEFAULT_TAU
) -> NDArray[np.float64]:
    """Return the softmax of negative rating entropy (the paper's "entropy-penalized weights").

    Args:
        entropy_R: Rating entropy of each rule in nats, shape [..., R].
        tau: Temperature, above 0. A large one approaches uniform weights, a small one the rule of
            lowest entropy.
    """
    # Shifted before the division, so that neither it nor exp can overflow for a tiny tau.
    with np.errstate(over="ignore"):
        mass_R = np.exp(-(entropy_R - entropy_R.min(axis=-1, keepdims=True)) / tau)
    return np.asarray(mass_R / mass_R.sum(axis=-1, keepdims=True), dtype=np.float64)


def _compute(evidence: Evidence, options: SchemeOptions) -> SchemeResult:
    weight_R = entropy_weights(evidence.entropy_R, tau=options.tau)
    return weight_R, {"tau": options.tau, "log_base": "e"}


SCHEME = WeightingScheme(name="encore", options=("tau",), compute=_compute)
