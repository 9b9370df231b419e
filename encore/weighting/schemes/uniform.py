"""Uniform: every rule weighs the same."""

from __future__ import annotations

import numpy as np

from encore.weighting.scheme import Evidence, SchemeOptions, Weighed, WeightingScheme


def _find(evidence: Evidence, _options: SchemeOptions) -> Weighed:
    return np.full(len(evidence.rules), 1 / len(evidence.rules)), {}


SCHEME = WeightingScheme(name="uniform", find=_find)
