"""All weighting schemes side by side on the same pairs, with what each of them has seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from encore.analysis.statistics import Accuracy, RuleStats
from encore.errors import EncoreError
from encore.warehouse import Ratings
from encore.weighting import SCHEMES, load_scheme
from encore.weighting.composed import Outcome, composed_outcomes, margin_sds_of
from encore.weighting.draws import NUM_RANDOM, Draws, draw_all
from encore.weighting.evidence import Evidence
from encore.weighting.folds import NUM_FOLDS, GroupedBy, HeldOut, held_out
from encore.weighting.opening import open_evidence
from encore.weighting.scheme import SchemeOptions, WeightingScheme, leakage, places_by_entropy
from encore.weighting.vector import WeightVector

# Suffixes: P pairs, R rules, V weight vectors.


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeRow:
    """One scheme's weights and how the ratings that they compose rank people's preferences.

    Attributes:
        label: The scheme with its parameters, for people.
        vector: The weights.
        uses_labels: Whether the labels that ``accuracy`` is measured with entered the weights.
        uses_benchmark: Whether a benchmark's answers did.
        effective_weights: Weight times sd of the margin, for each rule; None where it has no sd.
        accuracy: Of the composed ratings, on all compared pairs: flattered if ``uses_labels``.
        accuracy_low: Lower end of the 95 % interval of ``accuracy.half``; None without pairs.
        accuracy_high: Upper end.
        held_out_accuracy: On pairs the weights were not learnt from; None for schemes that learn
            from no label, whose ``accuracy`` is held out as it is.
        held_out_low: Lower end of the 95 % interval of ``held_out_accuracy.half``.
        held_out_high: Upper end.
        beats_random: Share of random weight vectors with a lower half-credit accuracy.
    """

    label: str
    vector: WeightVector
    uses_labels: bool
    uses_benchmark: bool
    effective_weights: tuple[float | None, ...]
    accuracy: Accuracy
    accuracy_low: float | None
    accuracy_high: float | None
    held_out_accuracy: Accuracy | None
    held_out_low: float | None
    held_out_high: float | None
    beats_random: float | None

    @property
    def leakage(self) -> str:
        """What it has seen of the answers it is measured by, in words."""
        return leakage(uses_labels=self.uses_labels, uses_benchmark=self.uses_benchmark)

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON has it: the vector's keys beside the others."""
        found = dataclasses.asdict(self)
        del found["vector"]
        return {"label": found.pop("label"), **self.vector.as_dict(), **found}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeComparison:
    """Weighting schemes on the same rules and the same pairs.

    Attributes:
        rules: Statistics of the rules over all sources, in the vectors' order.
        margin_sds: Standard deviation (ddof 1) of each rule's margins, over all pairs it rated.
        rows: One a scheme.
        draws: What draws by chance reach: random weights, k random rules, every single rule.
        num_pairs: Pairs compared: those whose two responses every rule rated.
        num_pairs_total: All pairs.
        num_folds: Of the held-out accuracies; None where there are none.
        folds_grouped_by: What is whole in one fold; None where there are no held-out accuracies.
        notes: Plain sentences on what limits these figures, schemes left out among them.
        num_shards: Shards of the run's plan; 0 where there is no plan.
        num_missing_shards: Those that are missing, damaged or failed, and therefore not in it.
    """

    rules: tuple[RuleStats, ...]
    margin_sds: tuple[float | None, ...]
    rows: tuple[SchemeRow, ...]
    draws: tuple[Draws, ...]
    num_pairs: int
    num_pairs_total: int
    num_folds: int | None
    folds_grouped_by: GroupedBy | None
    notes: tuple[str, ...]
    num_shards: int = 0
    num_missing_shards: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore weights --compare --json``."""
        return {
            "rule_ids": [rule.rule_id for rule in self.rules],
            "margin_sds": list(self.margin_sds),
            "num_pairs": self.num_pairs,
            "num_pairs_total": self.num_pairs_total,
            "num_folds": self.num_folds,
            "folds_grouped_by": self.folds_grouped_by,
            "rows": [row.as_dict() for row in self.rows],
            "draws": [
                {
                    "scheme": draws.scheme,
                    "num_draws": draws.num_draws,
                    "half_mean": draws.mean,
                    "half_low": draws.spread[0],
                    "half_high": draws.spread[1],
                }
                for draws in self.draws
            ],
            "notes": list(self.notes),
        }


def compare_schemes(
    ratings: str | Path | Ratings | Any,
    *,
    options: SchemeOptions | None = None,
    schemes: Sequence[str] | None = None,
    num_random: int = NUM_RANDOM,
) -> SchemeComparison:
    """Weigh the rules by several schemes and measure what each composes.

    Every scheme is measured on the same pairs: those whose two responses every rule rated.
    Everything is held in memory: 16 bytes a pair and rule, twice at the peak.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`.
        options: Of all schemes. Scheme ``single`` takes the rule of lowest entropy unless one is
            named.
        schemes: Which ones, in this order; all by default.
        num_random: Draws of random weights and of k random rules, at seeds from the options' on.

    Raises:
        InputError: No ratings table, an unknown scheme, a rule without ratings, or no scheme that
            can weigh these rules.
    """
    with open_evidence(ratings) as evidence:
        return compare(
            evidence, options=options or SchemeOptions(), schemes=schemes, num_random=num_random
        )


def compare(
    evidence: Evidence,
    *,
    options: SchemeOptions,
    schemes: Sequence[str] | None = None,
    num_random: int = NUM_RANDOM,
) -> SchemeComparison:
    """`compare_schemes` for evidence in hand."""
    if options.rule is None:
        lowest = places_by_entropy(evidence.entropy_R, evidence.rule_ids)[0]
        options = options.model_copy(update={"rule": evidence.rule_ids[lowest]})
    all_pairs = evidence.read_pairs()
    pairs = all_pairs.complete()
    margin_sds = margin_sds_of(all_pairs.margin_PR)
    draws = draw_all(pairs.margin_PR, pairs.rule_ids, options=options, num_draws=num_random)
    names = schemes or tuple(SCHEMES)
    weighed, left_out = _weigh_all(names, evidence.over(pairs), options)
    outcomes = composed_outcomes(
        pairs.margin_PR, np.array([vector.weights for _, vector, _ in weighed])
    )
    tests = {scheme.name: test for scheme, _, test in weighed if scheme.uses_labels}
    tested = next((test for test in tests.values() if test is not None), None)
    return SchemeComparison(
        rules=evidence.rules,
        margin_sds=margin_sds,
        rows=tuple(
            _row(scheme, vector, outcome, test, margin_sds, random=draws[0])
            for (scheme, vector, test), outcome in zip(weighed, outcomes, strict=True)
        ),
        draws=draws,
        num_pairs=pairs.num_pairs,
        num_pairs_total=all_pairs.num_pairs,
        num_folds=tested.num_folds if tested else None,
        folds_grouped_by=tested.grouped_by if tested else None,
        notes=(
            *left_out,
            *pair_notes(evidence.rules, num_pairs=pairs.num_pairs, total=all_pairs.num_pairs),
            *_constant_notes(evidence.rules),
            *(note for name, test in tests.items() for note in fold_notes(name, test)),
        ),
        num_shards=evidence.origin.num_shards,
        num_missing_shards=evidence.origin.num_missing_shards,
    )


def label_of(vector: WeightVector) -> str:
    """A scheme with the parameters that were chosen for it."""
    names = {"tau": "τ ", "k": "k ", "seed": "seed ", "rule": ""}
    shown = [
        name + (f"{value:g}" if isinstance(value, float) else str(value))
        for key, name in names.items()
        if (value := vector.params.get(key)) is not None
    ]
    return vector.scheme + (f" ({', '.join(shown)})" if shown else "")


def pair_notes(rules: Sequence[RuleStats], *, num_pairs: int, total: int) -> Iterator[str]:
    """What is left out when composed ratings are compared over fully rated pairs alone."""
    if num_pairs < total:
        least = min(rules, key=lambda rule: rule.num_pairs)
        yield (
            f"accuracies are over the {num_pairs} of {total} pairs whose two responses every rule "
            f"rated; the least complete is {least.rule_id}, with {least.num_pairs}"
        )


def fold_notes(scheme: str, test: HeldOut | None) -> Iterator[str]:
    """What limits the held-out accuracy of a scheme that learns from labels."""
    if test is None:
        yield f"{scheme}: too few pairs to hold any out, so it has no held-out accuracy"
        return
    if test.num_folds < NUM_FOLDS:
        yield f"{scheme}: {test.num_folds} folds, as there are no more groups of pairs"
    if test.grouped_by == "pair":
        yield (
            f"{scheme}: the prompts of these pairs are not known, so its held-out accuracy is "
            "grouped by pair_id; pairs of one prompt may be both learnt from and tested on"
        )


_Weighed = tuple[WeightingScheme, WeightVector, HeldOut | None]


def _weigh_all(
    names: Sequence[str], evidence: Evidence, options: SchemeOptions
) -> tuple[list[_Weighed], list[str]]:
    """Vector and test of each scheme that can weigh these rules, and why the others cannot."""
    weighed: list[_Weighed] = []
    left_out: list[str] = []
    for scheme in map(load_scheme, names):
        try:
            vector = scheme.weigh(evidence, options)
        except EncoreError as error:  # bad input, or no optimum
            # A rule that is not there is the caller's slip, not a limit of the data.
            if "rule" in scheme.options or len(names) == 1:
                raise
            left_out.append(f"left out: {error}")
            continue
        test = held_out(scheme, evidence, options) if scheme.uses_labels else None
        weighed.append((scheme, vector, test))
    return weighed, left_out


def _row(
    scheme: WeightingScheme,
    vector: WeightVector,
    outcome: Outcome,
    test: HeldOut | None,
    margin_sds: Sequence[float | None],
    *,
    random: Draws,
) -> SchemeRow:
    low, high = outcome.interval
    test_low, test_high = test.outcome.interval if test else (None, None)
    return SchemeRow(
        label=label_of(vector),
        vector=vector,
        uses_labels=scheme.uses_labels,
        uses_benchmark=scheme.uses_benchmark,
        effective_weights=tuple(
            None if sd is None else weight * sd
            for weight, sd in zip(vector.weights, margin_sds, strict=True)
        ),
        accuracy=outcome.accuracy,
        accuracy_low=low,
        accuracy_high=high,
        held_out_accuracy=test.accuracy if test else None,
        held_out_low=test_low,
        held_out_high=test_high,
        beats_random=random.share_below(outcome.accuracy.half),
    )


def _constant_notes(rules: Sequence[RuleStats]) -> Iterator[str]:
    for rule in rules:
        if rule.num_levels == 1:
            yield (
                f"rule {rule.rule_id} is constant: whatever its weight, it moves no ranking; "
                "encore gives it the largest, inverse-sd and bradley-terry none"
            )
