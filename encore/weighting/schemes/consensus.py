"""Consensus: the more a rule agrees with the other rules, the higher its weight.

It needs no label. It rewards whatever most rules measure: quality if they do, the length or the
tone of a response if they do.
"""

from __future__ import annotations

from encore.analysis.answer_options import DOUBLE_CORRELATION
from encore.analysis.consensus import consensus_weights
from encore.weighting.scheme import Evidence, SchemeResult, WeightingScheme
from encore.weighting.scheme_options import SchemeOptions


def _compute(evidence: Evidence, options: SchemeOptions) -> SchemeResult:
    weight_R = consensus_weights(
        evidence.correlation_RR, tau=options.tau, threshold=DOUBLE_CORRELATION
    )
    return weight_R, {"tau": options.tau, "double_correlation": DOUBLE_CORRELATION}


SCHEME = WeightingScheme(name="consensus", options=("tau",), compute=_compute)
