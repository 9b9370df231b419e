"""ENCORE: the higher the entropy of a rule's ratings, the lower its weight."""

from __future__ import annotations

from encore.analysis.entropy import entropy_weights
from encore.weighting.scheme import Evidence, SchemeResult, WeightingScheme
from encore.weighting.scheme_options import SchemeOptions


def _compute(evidence: Evidence, options: SchemeOptions) -> SchemeResult:
    weight_R = entropy_weights(evidence.entropy_R, tau=options.tau)
    return weight_R, {"tau": options.tau, "log_base": "e"}


SCHEME = WeightingScheme(name="encore", options=("tau",), compute=_compute)
