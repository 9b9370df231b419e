"""Top k: the rules of lowest entropy, averaged (the paper's appendix "Rule Selection")."""

from __future__ import annotations

from encore.weighting.evidence import Evidence
from encore.weighting.scheme import SchemeOptions, WeightingScheme
from encore.weighting.subset import equal_weights, places_by_entropy
from encore.weighting.vector import WeightVector


def _weigh(evidence: Evidence, options: SchemeOptions) -> WeightVector:
    num_rules = len(evidence.rules)
    # The paper: "select out the top 5 rules and average their rewards".
    chosen = places_by_entropy(evidence.entropy_R, evidence.rule_ids)[: options.k]
    weight_R = equal_weights(chosen, num_rules=num_rules)
    return evidence.vector(SCHEME, weight_R, params={"k": len(chosen)})


SCHEME = WeightingScheme(
    name="top-k",
    summary="the k rules of lowest entropy weigh the same, the others nothing",
    uses_labels=False,
    uses_benchmark=False,
    options=("k",),
    weigh=_weigh,
)
