"""Random: a uniformly random point of the simplex (the paper's "Random Weights")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from encore.weighting.scheme import Evidence, SchemeResult, WeightingScheme
from encore.weighting.scheme_options import SchemeOptions


def random_weights(rule_ids: Sequence[str], *, seed: int) -> NDArray[np.float64]:
    """Draw weights from the Dirichlet distribution with alpha 1, shape [R].

    They are drawn for the rules sorted by id, so that the order of the rules does not change a
    rule's weight. The paper names the Dirichlet distribution without alpha; with 1 it is uniform on
    the simplex.
    """
    weight_R = np.empty(len(rule_ids))
    drawn_R = np.random.default_rng(seed).dirichlet(np.ones(len(rule_ids)))
    weight_R[np.argsort(rule_ids)] = drawn_R
    return weight_R


def _compute(evidence: Evidence, options: SchemeOptions) -> SchemeResult:
    weight_R = random_weights(evidence.rule_ids, seed=options.seed)
    return weight_R, {"alpha": 1.0, "seed": options.seed}


SCHEME = WeightingScheme(name="random", options=("seed",), compute=_compute)
