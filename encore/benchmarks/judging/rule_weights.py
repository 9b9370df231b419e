"""Weights of rules, checked against the rules that a judge was asked about."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from encore.data.records import RuleSet
from encore.errors import InputError
from encore.weighting.vector import Origin, WeightVector


def checked_weights(weights: Mapping[str, float], *, rule_ids: Sequence[str]) -> dict[str, float]:
    """A weight for every rule, in the rules' order.

    Raises:
        InputError: Weights of other rules, a weight that is no finite number of 0 or above, or no
            weight above 0.
    """
    differing = sorted(set(weights).symmetric_difference(rule_ids))
    if differing:
        raise InputError(
            f"weights of {len(weights)} rules for a judge asked about {len(rule_ids)}: they differ "
            f"in {', '.join(differing[:3])}; take weights from a study rated under the same rules"
        )
    for rule_id, weight in weights.items():
        if not (math.isfinite(weight) and weight >= 0):
            raise InputError(
                f"weight {weight} of rule {rule_id}: expected a finite number, 0 or above"
            )
    if not any(weights.values()):
        raise InputError("weights: all are 0; expected at least one above 0")
    return {rule_id: float(weights[rule_id]) for rule_id in rule_ids}


def weights_by_rule(weights: WeightVector) -> dict[str, float]:
    """The weights of a vector by rule."""
    return dict(zip(weights.rule_ids, weights.weights, strict=True))


def check_origin(
    weights: WeightVector, *, rules: RuleSet, benchmark: str, own_data: Collection[str]
) -> None:
    """Refuse weights that are of other rule texts, or of the ratings of the benchmark itself.

    What weights do not say of where they come from is not looked at.

    Args:
        weights: For a judge.
        rules: That the judge is asked about.
        benchmark: Its name.
        own_data: Digests that the benchmark's own pairs have as a study's
            (`encore.benchmarks.judging.rated.own_data_digests`).

    Raises:
        InputError: Which of the two.
    """
    origin = _origin(weights)
    if origin.rules_sha256 not in (None, rules.digest):
        raise InputError(
            f"weights of rules with other texts, or in another order ({origin.rules_sha256:.12}), "
            f"than rule set {rules.name} has here ({rules.digest:.12}); give the rule set that the "
            "study was rated under (--rules), or rate it under this one"
        )
    if origin.data_sha256 in own_data:
        raise InputError(
            f"weights from ratings of benchmark {benchmark} itself (run {origin.run_key}): they "
            "would be measured on what they come from; take them from a training study"
        )


def origin_notes(weights: WeightVector, *, judge: str) -> Iterator[str]:
    """What a reader of a judge's figures must know of where its weights come from.

    Args:
        weights: Of the rules.
        judge: Who judged.
    """
    origin = _origin(weights)
    if origin.judge not in (None, judge):
        yield (
            f"judge {judge}: the rules are weighed by the ratings of another judge, {origin.judge}"
        )
    if origin.num_missing_shards:
        yield (
            f"judge {judge}: the rules are weighed by an incomplete rating run: "
            f"{origin.num_missing_shards} of {origin.num_shards} shards are missing, damaged or "
            "failed"
        )


def _origin(weights: WeightVector) -> Origin:
    return Origin() if weights.provenance is None else weights.provenance.origin
