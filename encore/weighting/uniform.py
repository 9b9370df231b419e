"""Uniform: every rule weighs the same."""

from __future__ import annotations

from encore.weighting.evidence import Evidence
from encore.weighting.scheme import SchemeOptions, Weighed, WeightingScheme, equal_weights


def _find(evidence: Evidence, _options: SchemeOptions) -> Weighed:
    num_rules = len(evidence.rules)
    return equal_weights(range(num_rules), num_rules=num_rules), {}


SCHEME = WeightingScheme(name="uniform", summary="every rule weighs the same", find=_find)
