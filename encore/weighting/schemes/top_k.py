"""Top k: the rules of lowest entropy, averaged (the paper's appendix "Rule Selection")."""

from __future__ import annotations

from encore.weighting.scheme import Evidence, SchemeOptions, Weighed, WeightingScheme, equal_weights


def _find(evidence: Evidence, options: SchemeOptions) -> Weighed:
    # The paper: "select out the top 5 rules and average their rewards".
    chosen = evidence.places_by_entropy()[: options.k]
    return equal_weights(chosen, num_rules=len(evidence.rules)), {"k": len(chosen)}


SCHEME = WeightingScheme(name="top-k", options=("k",), find=_find)
