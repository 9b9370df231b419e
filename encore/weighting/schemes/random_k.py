"""Random k: k randomly drawn rules, averaged (the paper's baseline "Random 5 Rules")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from encore.weighting.scheme import Evidence, SchemeResult, WeightingScheme, equal_weights
from encore.weighting.scheme_options import SchemeOptions


def random_k_weights(rule_ids: Sequence[str], *, k: int, seed: int) -> NDArray[np.float64]:
    """Return equal weights for k rules drawn without replacement, shape [R]; at most all rules.

    They are drawn from the rules sorted by id, so that the order of the rules does not matter.
    """
    drawn_K = np.random.default_rng(seed).permutation(len(rule_ids))[:k]
    return equal_weights(np.argsort(rule_ids)[drawn_K], num_rules=len(rule_ids))


def _compute(evidence: Evidence, options: SchemeOptions) -> SchemeResult:
    weight_R = random_k_weights(evidence.rule_ids, k=options.k, seed=options.seed)
    return weight_R, {"k": min(options.k, len(weight_R)), "seed": options.seed}


SCHEME = WeightingScheme(name="random-k", options=("k", "seed"), compute=_compute)
