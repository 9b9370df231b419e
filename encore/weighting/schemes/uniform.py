"""Uniform: the same weight for every rule."""

from __future__ import annotations

import numpy as np

from encore.weighting.scheme import Evidence, SchemeResult, WeightingScheme
from encore.weighting.scheme_options import SchemeOptions


def _compute(evidence: Evidence, _options: SchemeOptions) -> SchemeResult:
    return np.full(len(evidence.rules), 1 / len(evidence.rules)), {}


SCHEME = WeightingScheme(name="uniform", compute=_compute)
