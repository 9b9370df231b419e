"""Single: all weight on one rule, named with --rule."""

from __future__ import annotations

import numpy as np

from encore.core.errors import InputError
from encore.weighting.scheme import Evidence, SchemeResult, WeightingScheme
from encore.weighting.scheme_options import SchemeOptions


def _compute(evidence: Evidence, options: SchemeOptions) -> SchemeResult:
    rule_ids = evidence.rule_ids
    if options.rule not in rule_ids:
        problem = "is missing" if options.rule is None else f"{options.rule!r}: not a rated rule"
        raise InputError(f"scheme single: --rule {problem}; expected one of {', '.join(rule_ids)}")
    return np.eye(len(rule_ids))[rule_ids.index(options.rule)], {"rule": options.rule}


SCHEME = WeightingScheme(name="single", options=("rule",), compute=_compute)
