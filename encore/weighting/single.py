"""Single: one rule takes all the weight."""

from __future__ import annotations

from encore.errors import InputError
from encore.weighting.evidence import Evidence
from encore.weighting.scheme import SchemeOptions, Weighed, WeightingScheme, equal_weights


def _find(evidence: Evidence, options: SchemeOptions) -> Weighed:
    rule_ids = evidence.rule_ids
    if options.rule not in rule_ids:
        given = "is missing" if options.rule is None else f"{options.rule!r}: not a rated rule"
        raise InputError(f"scheme single: --rule {given}; expected one of {', '.join(rule_ids)}")
    weight_R = equal_weights([rule_ids.index(options.rule)], num_rules=len(rule_ids))
    return weight_R, {"rule": options.rule}


SCHEME = WeightingScheme(
    name="single",
    summary="one rule, named with --rule, takes all the weight",
    options=("rule",),
    find=_find,
)
