"""Uniform: every rule weighs the same."""

from __future__ import annotations

import numpy as np

from encore.weighting.evidence import Evidence
from encore.weighting.scheme import SchemeOptions, WeightingScheme
from encore.weighting.vector import WeightVector


def _weigh(evidence: Evidence, options: SchemeOptions) -> WeightVector:  # noqa: ARG001 - every scheme is called with both
    num_rules = len(evidence.rules)
    return evidence.vector(SCHEME, np.full(num_rules, 1 / num_rules))


SCHEME = WeightingScheme(
    name="uniform",
    summary="every rule weighs the same",
    uses_labels=False,
    uses_benchmark=False,
    options=(),
    weigh=_weigh,
)
