"""Top k: the rules of lowest entropy, averaged (the paper's appendix "Rule Selection")."""

from __future__ import annotations

from encore.weighting.scheme import Evidence, SchemeResult, WeightingScheme, equal_weights
from encore.weighting.scheme_options import SchemeOptions


def _compute(evidence: Evidence, options: SchemeOptions) -> SchemeResult:
    # The paper: "select out the top 5 rules and average their rewards".
    rule_index_K = evidence.rule_indices_by_entropy()[: options.k]
    weight_R = equal_weights(rule_index_K, num_rules=len(evidence.rules))
    return weight_R, {"k": len(rule_index_K)}


SCHEME = WeightingScheme(name="top-k", options=("k",), compute=_compute)
