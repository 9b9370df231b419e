"""Top k: the rules of lowest entropy, averaged (the paper's appendix "Rule Selection")."""

from __future__ import annotations

from encore.weighting.evidence import Evidence
from encore.weighting.scheme import (
    SchemeOptions,
    Weighed,
    WeightingScheme,
    equal_weights,
    places_by_entropy,
)


def _find(evidence: Evidence, options: SchemeOptions) -> Weighed:
    # The paper: "select out the top 5 rules and average their rewards".
    chosen = places_by_entropy(evidence.entropy_R, evidence.rule_ids)[: options.k]
    return equal_weights(chosen, num_rules=len(evidence.rules)), {"k": len(chosen)}


SCHEME = WeightingScheme(
    name="top-k",
    summary="the k rules of lowest entropy weigh the same, the others nothing",
    options=("k",),
    find=_find,
)
