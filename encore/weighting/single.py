"""Single: one rule takes all the weight."""

from __future__ import annotations

from encore.errors import InputError
from encore.weighting.evidence import Evidence
from encore.weighting.scheme import SchemeOptions, WeightingScheme
from encore.weighting.subset import equal_weights
from encore.weighting.vector import WeightVector


def _weigh(evidence: Evidence, options: SchemeOptions) -> WeightVector:
    rule_ids = evidence.rule_ids
    if options.rule not in rule_ids:
        problem = (
            "scheme single: --rule is missing"
            if options.rule is None
            else f"--rule {options.rule!r}: not among the rated rules"
        )
        raise InputError(f"{problem}; expected one of {', '.join(rule_ids)}")
    weight_R = equal_weights([rule_ids.index(options.rule)], num_rules=len(rule_ids))
    return evidence.vector(SCHEME, weight_R, params={"rule": options.rule})


SCHEME = WeightingScheme(
    name="single",
    summary="one rule, named with --rule, takes all the weight",
    uses_labels=False,
    uses_benchmark=False,
    options=("rule",),
    weigh=_weigh,
)
