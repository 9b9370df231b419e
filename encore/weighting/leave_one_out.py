"""What each rule does for the composed rating: weigh again without it and look at accuracy."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.statistics import Accuracy
from encore.errors import InputError
from encore.weighting import load_scheme
from encore.weighting.comparison import pair_notes
from encore.weighting.composed import Z_95, complete_pairs, credits_of, outcome_of
from encore.weighting.evidence import Evidence
from encore.weighting.opening import open_evidence
from encore.weighting.scheme import SchemeOptions, WeightingScheme
from encore.weighting.vector import WeightVector

# Suffixes: P pairs, R rules.

_NO_ACCURACY = Accuracy(half=None, strict=None, untied=None, inclusive=None)

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """The composed rating without one rule.

    Attributes:
        rule_id: The rule left out.
        weight: What it weighs when it is there.
        accuracy: Of the other rules' composed ratings, weighed anew; all None if there is none.
        change_half: Half-credit accuracy without the rule minus with it; above 0: it does harm.
            None where either has no value.
        change_low: Lower end of its 95 % interval, the pairs compared one by one; None for fewer
            than two pairs.
        change_high: Upper end.
    """

    rule_id: str
    weight: float
    accuracy: Accuracy
    change_half: float | None
    change_low: float | None
    change_high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOneOut:
    """Every rule's leave-one-out effect under one scheme, over the same pairs.

    Attributes:
        vector: The weights of all rules.
        uses_labels: Whether the labels that accuracy is measured with entered the weights.
        uses_benchmark: Whether a benchmark's answers did.
        accuracy: Of the composed ratings of all rules.
        left_out: One a rule, in order.
        num_pairs: Pairs whose two responses every rule rated.
        num_pairs_total: All pairs.
        notes: Plain sentences on what limits these figures.
        num_shards: Shards of the run's plan; 0 where there is no plan.
        num_missing_shards: Those that are not in it.
    """

    vector: WeightVector
    uses_labels: bool
    uses_benchmark: bool
    accuracy: Accuracy
    left_out: tuple[LeftOut, ...]
    num_pairs: int
    num_pairs_total: int
    notes: tuple[str, ...] = ()
    num_shards: int = 0
    num_missing_shards: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore weights --leave-one-out --json``."""
        return {
            **self.vector.as_dict(),
            "uses_labels": self.uses_labels,
            "uses_benchmark": self.uses_benchmark,
            "accuracy": dataclasses.asdict(self.accuracy),
            "left_out": [dataclasses.asdict(rule) for rule in self.left_out],
            "num_pairs": self.num_pairs,
            "num_pairs_total": self.num_pairs_total,
            "notes": list(self.notes),
        }


def leave_one_out(
    ratings: str | Path | Any,
    *,
    scheme: str = "encore",
    options: SchemeOptions | None = None,
    run: str | None = None,
    judge: str | None = None,
) -> tuple[LeftOut, ...]:
    """Each rule's effect: the other rules are weighed anew by the same scheme.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`.
        scheme: One that draws nothing by chance and is not ``single``.
        options: Of the scheme.
        run: Which run, where there are several: a unique prefix of its key.
        judge: Which judge, where there are several.

    Raises:
        InputError: No ratings table, an unknown or unfit scheme, a rule without ratings.
    """
    with open_evidence(ratings, run=run, judge=judge) as evidence:
        found = leave_each_out(
            evidence, scheme=load_scheme(scheme), options=options or SchemeOptions()
        )
    return found.left_out


def leave_each_out(
    evidence: Evidence, *, scheme: WeightingScheme, options: SchemeOptions
) -> LeaveOneOut:
    """`leave_one_out` for evidence in hand, with the composed rating of all rules beside it."""
    if {"seed", "rule"} & set(scheme.options):
        raise InputError(
            f"leave-one-out under scheme {scheme.name}: it would compare draws or single rules, "
            "not sets of rules; choose encore, uniform, top-k, inverse-sd or bradley-terry"
        )
    all_pairs = evidence.read_pairs()
    pairs = complete_pairs(all_pairs)
    complete = evidence.over(pairs)
    margin_PR = pairs.margin_PR
    vector = scheme.weigh(complete, options)
    composed_P = margin_PR @ np.array(vector.weights)
    left_out = []
    for place, (rule_id, weight) in enumerate(zip(vector.rule_ids, vector.weights, strict=True)):
        kept = [other for other in range(len(vector.rule_ids)) if other != place]
        without_P = None
        if kept:
            others = scheme.weigh(complete.over(pairs, places=kept), options)
            without_P = margin_PR[:, kept] @ np.array(others.weights)
        left_out.append(_left_out(rule_id, weight, composed_P=composed_P, without_P=without_P))
    return LeaveOneOut(
        vector=vector,
        uses_labels=scheme.uses_labels,
        uses_benchmark=scheme.uses_benchmark,
        accuracy=outcome_of(composed_P).accuracy,
        left_out=tuple(left_out),
        num_pairs=pairs.num_pairs,
        num_pairs_total=all_pairs.num_pairs,
        notes=tuple(
            pair_notes(evidence.rules, num_pairs=pairs.num_pairs, total=all_pairs.num_pairs)
        ),
        num_shards=evidence.origin.num_shards,
        num_missing_shards=evidence.origin.num_missing_shards,
    )


def _left_out(
    rule_id: str, weight: float, *, composed_P: _Floats, without_P: _Floats | None
) -> LeftOut:
    accuracy, change, half_width = _NO_ACCURACY, None, None
    if without_P is not None:
        accuracy = outcome_of(without_P).accuracy
        change, half_width = _mean_change(credits_of(without_P) - credits_of(composed_P))
    return LeftOut(
        rule_id=rule_id,
        weight=weight,
        accuracy=accuracy,
        change_half=change,
        change_low=None if change is None or half_width is None else change - half_width,
        change_high=None if change is None or half_width is None else change + half_width,
    )


def _mean_change(change_P: _Floats) -> tuple[float | None, float | None]:
    """The mean and half the width of its 95 % interval, by the normal approximation."""
    if len(change_P) == 0:
        return None, None
    if len(change_P) == 1:
        return float(change_P[0]), None
    half_width = Z_95 * float(np.std(change_P, ddof=1)) / math.sqrt(len(change_P))
    return float(change_P.mean()), half_width
