"""Random k: some rules by lot, averaged (the paper's baseline "Random 5 Rules")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from encore.weighting.evidence import Evidence
from encore.weighting.scheme import (
    SchemeOptions,
    Weighed,
    WeightingScheme,
    equal_weights,
    places_by_id,
)


def random_k_weights(rule_ids: Sequence[str], *, k: int, seed: int) -> NDArray[np.float64]:
    """Equal weights for k rules drawn without replacement, shape [R]; all if there are fewer.

    Drawn from the rules sorted by id, so that their order does not decide which are drawn.
    """
    by_id = places_by_id(rule_ids)
    drawn = np.random.default_rng(seed).permutation(len(by_id))[:k]
    return equal_weights([by_id[index] for index in drawn], num_rules=len(by_id))


def _find(evidence: Evidence, options: SchemeOptions) -> Weighed:
    weight_R = random_k_weights(evidence.rule_ids, k=options.k, seed=options.seed)
    return weight_R, {"k": min(options.k, len(weight_R)), "seed": options.seed}


SCHEME = WeightingScheme(
    name="random-k",
    summary="k rules drawn by lot weigh the same, the others nothing",
    options=("k", "seed"),
    find=_find,
)
