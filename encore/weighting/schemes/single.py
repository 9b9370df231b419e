"""Single: one rule, named with --rule, takes all the weight."""

from __future__ import annotations

import numpy as np

from encore.core.errors import InputError
from encore.weighting.scheme import Evidence, SchemeOptions, Weighed, WeightingScheme


def _find(evidence: Evidence, options: SchemeOptions) -> Weighed:
    rule_ids = evidence.rule_ids
    if options.rule not in rule_ids:
        given = "is missing" if options.rule is None else f"{options.rule!r}: not a rated rule"
        raise InputError(f"scheme single: --rule {given}; expected one of {', '.join(rule_ids)}")
    return np.eye(len(rule_ids))[rule_ids.index(options.rule)], {"rule": options.rule}


SCHEME = WeightingScheme(name="single", options=("rule",), find=_find)
