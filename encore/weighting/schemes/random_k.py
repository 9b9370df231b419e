"""Random k: some rules by lot, averaged (the paper's baseline "Random 5 Rules")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from encore.weighting.scheme import Evidence, SchemeOptions, Weighed, WeightingScheme, equal_weights


def random_k_weights(rule_ids: Sequence[str], *, k: int, seed: int) -> NDArray[np.float64]:
    """Equal weights for k rules drawn without replacement, shape [R]; all if there are fewer.

    Drawn from the rules sorted by id, so that their order does not decide which are drawn.
    """
    drawn_K = np.random.default_rng(seed).permutation(len(rule_ids))[:k]
    return equal_weights(np.argsort(rule_ids)[drawn_K], num_rules=len(rule_ids))


def _find(evidence: Evidence, options: SchemeOptions) -> Weighed:
    weight_R = random_k_weights(evidence.rule_ids, k=options.k, seed=options.seed)
    return weight_R, {"k": min(options.k, len(weight_R)), "seed": options.seed}


SCHEME = WeightingScheme(name="random-k", options=("k", "seed"), find=_find)
