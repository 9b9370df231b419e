"""Random: a point of the simplex, every point as likely (the paper's "Random Weights")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from encore.weighting.scheme import Evidence, SchemeOptions, Weighed, WeightingScheme


def random_weights(rule_ids: Sequence[str], *, seed: int) -> NDArray[np.float64]:
    """One draw from the Dirichlet distribution with alpha 1, shape [R].

    Drawn for the rules sorted by id, so that their order does not decide which gets which weight.
    The paper says "Dirichlet" and no alpha; 1 is uniform on the simplex.
    """
    weight_R = np.empty(len(rule_ids))
    drawn_R = np.random.default_rng(seed).dirichlet(np.ones(len(rule_ids)))
    weight_R[np.argsort(rule_ids)] = drawn_R
    return weight_R


def _find(evidence: Evidence, options: SchemeOptions) -> Weighed:
    weight_R = random_weights(evidence.rule_ids, seed=options.seed)
    return weight_R, {"alpha": 1.0, "seed": options.seed}


SCHEME = WeightingScheme(name="random", options=("seed",), find=_find)
