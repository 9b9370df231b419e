"""ENCORE: the higher the entropy of a rule's ratings, the lower its weight."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from encore.weighting.scheme import DEFAULT_TAU, Evidence, SchemeOptions, Weighed, WeightingScheme


def entropy_weights(
    entropy_R: NDArray[np.float64], *, tau: float = DEFAULT_TAU
) -> NDArray[np.float64]:
    """Softmax of negative rating entropy over rules (the paper's "entropy-penalized weights").

    Args:
        entropy_R: Rating entropy of each rule in nats, shape [..., R].
        tau: Temperature; large approaches uniform, small the lowest-entropy rule.
    """
    # Shifted before the division, so that neither it nor exp can overflow for a tiny tau.
    with np.errstate(over="ignore"):
        mass_R = np.exp(-(entropy_R - entropy_R.min(axis=-1, keepdims=True)) / tau)
    return np.asarray(mass_R / mass_R.sum(axis=-1, keepdims=True), dtype=np.float64)


def _find(evidence: Evidence, options: SchemeOptions) -> Weighed:
    weight_R = entropy_weights(evidence.entropy_R, tau=options.tau)
    return weight_R, {"tau": options.tau, "log_base": "e"}


SCHEME = WeightingScheme(name="encore", options=("tau",), find=_find)
