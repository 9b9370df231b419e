"""Uniform: every rule weighs the same."""

from __future__ import annotations

from collections.abc import Sequence

from encore.statistics import RuleStats
from encore.weighting.scheme import SchemeOptions, WeightingScheme
from encore.weighting.vector import WeightVector


def _weigh(rules: Sequence[RuleStats], options: SchemeOptions) -> WeightVector:  # noqa: ARG001 - every scheme is called with both
    return WeightVector(
        scheme=SCHEME.name,
        rule_ids=tuple(rule.rule_id for rule in rules),
        weights=(1 / len(rules),) * len(rules),
    )


SCHEME = WeightingScheme(
    name="uniform",
    summary="every rule weighs the same",
    uses_labels=False,
    options=(),
    weigh=_weigh,
)
