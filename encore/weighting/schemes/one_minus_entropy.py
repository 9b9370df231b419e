"""One minus entropy: weights in proportion to 1 - H, with H divided by the largest possible one.

A co-author of the paper describes ENCORE's weight as "almost exactly 1 - H"; the paper's own weight
is a softmax (scheme ``encore``). H is the entropy of a rule's ratings divided by the logarithm of
the number of levels of the rule that has most. So H is between 0 (all ratings are equal) and 1, one
number divides all entropies, and the base of the logarithm does not matter.
"""

from __future__ import annotations

import numpy as np

from encore.weighting.scheme import Evidence, SchemeResult, WeightingScheme
from encore.weighting.scheme_options import SchemeOptions


def _compute(evidence: Evidence, _options: SchemeOptions) -> SchemeResult:
    num_levels = max(rule.num_levels for rule in evidence.rules)
    largest_nats = float(np.log(num_levels)) or 1.0  # a single level: every entropy is 0
    mass_R = np.clip(1 - evidence.entropy_R / largest_nats, 0.0, None)
    # If all rules have the largest entropy, none is better than another.
    total = float(mass_R.sum())
    weight_R = mass_R / total if total > 0 else np.full(len(mass_R), 1 / len(mass_R))
    return weight_R, {"num_levels": num_levels}


SCHEME = WeightingScheme(name="one-minus-entropy", compute=_compute)
