"""Compare all weighting schemes on the same pairs, and scheme encore at several temperatures."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import middle_95
from encore.analysis.entropy import entropy_weights
from encore.analysis.statistics import Accuracy, RuleStats
from encore.core.errors import EncoreError
from encore.core.record_table import RecordTable
from encore.core.shown_record import ShownRecord
from encore.data.annotations import people_labels
from encore.warehouse import PairRatings, Ratings
from encore.warehouse.pair_ratings import GroupedBy
from encore.weighting.composed_ratings import Outcome, composed_outcomes, rule_margin_sds
from encore.weighting.cross_validation import HeldOut, fold_notes, held_out
from encore.weighting.scheme import Evidence, WeightingScheme
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.schemes import SCHEMES, load_scheme
from encore.weighting.schemes.random import random_weights
from encore.weighting.schemes.random_k import random_k_weights
from encore.weighting.weigh import open_evidence
from encore.weighting.weight_vector import WeightVector

# Suffixes: P pairs, R rules, V weight vectors, T temperatures.

NUM_RANDOM = 1000
#: Entropies of ratings differ by up to two nats. Below the first temperature all unequal entropies
#: get different weights; above the last one weights differ by less than a few per cent.
DEFAULT_TAUS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeRow:
    """One scheme's weights, and how well the composed ratings rank people's preferences.

    Attributes:
        label: The scheme with its parameters, for people.
        vector: The scheme's weight vector.
        uses_labels: True if the weights were learnt from the labels that ``accuracy`` is measured
            with.
        uses_benchmark: True if they were learnt from a benchmark's answers; none of our schemes is.
        effective_weights: For each rule weight times sd of the margin; None without an sd.
        accuracy: Accuracy of the composed ratings on all compared pairs; too high if
            ``uses_labels``.
        accuracy_low: Lower end of the 95 % interval of ``accuracy.half``; None without pairs.
        accuracy_high: Upper end of that interval.
        held_out_accuracy: Accuracy on pairs that the weights were not learnt from; None for schemes
            that use no labels, whose ``accuracy`` is held out already.
        held_out_low: Lower end of the 95 % interval of ``held_out_accuracy.half``.
        held_out_high: Upper end of that interval.
        beats_random: Share of random weight vectors with a lower half-credit accuracy; an equal
            one counts one half.
    """

    label: str
    vector: WeightVector
    uses_labels: bool
    uses_benchmark: bool = False
    effective_weights: tuple[float | None, ...]
    accuracy: Accuracy
    accuracy_low: float | None
    accuracy_high: float | None
    held_out_accuracy: Accuracy | None
    held_out_low: float | None
    held_out_high: float | None
    beats_random: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Half-credit accuracy of many draws of one scheme.

    The paper reports the mean of 3 draws; the quantiles show how much a single draw varies. They
    are about chance between draws, not between pairs. Without pairs there are no draws.

    Attributes:
        scheme: ``random``, ``random-k`` or ``single`` (every rule once).
        num_draws: Number of weight vectors.
        half_mean: Mean over the draws; None without draws.
        half_low: 2.5 % quantile of the draws.
        half_high: 97.5 % quantile of the draws.
    """

    scheme: str
    num_draws: int = 0
    half_mean: float | None = None
    half_low: float | None = None
    half_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SchemeComparison(ShownRecord):
    """Weighting schemes on the same rules and the same pairs.

    Attributes:
        rule_ids: The rules, in the vectors' order.
        margin_sds: Standard deviation (ddof 1) of each rule's margins, over all pairs it rated.
        rows: One row per scheme.
        draws: Accuracy of random weights, of k random rules, and of every single rule.
        num_pairs: Compared pairs: those whose two responses every rule rated.
        num_prompts: Number of their prompts; None if prompts are not known.
        num_pairs_total: All pairs, rated fully or not.
        num_folds: Number of folds of the held-out accuracies; None without such accuracies.
        folds_grouped_by: The group that stays whole in a fold; None without held-out accuracies.
        notes: Sentences on what limits these figures, and which schemes were left out.
    """

    rule_ids: tuple[str, ...]
    margin_sds: tuple[float | None, ...]
    rows: RecordTable[SchemeRow]
    draws: tuple[Draws, ...]
    num_pairs: int
    num_prompts: int | None
    num_pairs_total: int
    num_folds: int | None
    folds_grouped_by: GroupedBy | None
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON of ``encore weights --compare --json``."""
        fields = dataclasses.asdict(self)
        rows = zip(self.rows, fields["rows"], strict=True)
        # The fields of the vector are fields of the row.
        fields["rows"] = [
            row.vector.as_dict() | {key: values[key] for key in values if key != "vector"}
            for row, values in rows
        ]
        return fields


def compare_schemes(
    ratings: str | Path | Ratings | Evidence | Any,
    *,
    options: SchemeOptions | None = None,
    schemes: Sequence[str] = SCHEMES,
) -> SchemeComparison:
    """Weigh the rules by every scheme, or by some, and measure the composed ratings of each.

    >>> comparison = compare_schemes("ratings.csv")
    >>> comparison.rows.to_pandas()["label"].tolist()[:2]
    ['encore (τ 2)', 'uniform']

    Scheme ``agreement`` is included if the study has labels of people. All schemes are measured on
    the same pairs: those whose two responses every rule rated. All ratings are held in memory: 16
    bytes per pair and rule, twice that at the peak.

    Args:
        ratings: Ratings, in any form that `encore.analysis.analyze.analyze` takes, or opened
            evidence of them.
        options: Options of all schemes. Scheme ``single`` takes the rule of lowest entropy unless
            one is named. Random weights and k random rules are drawn at this seed and those after
            it.
        schemes: Names of the schemes that are compared.

    Raises:
        InputError: Not a ratings table, a rule without ratings, or an unknown rule.
    """
    if isinstance(ratings, Evidence):
        return _compared(ratings, options or SchemeOptions(), schemes)
    with open_evidence(ratings) as evidence:
        return _compared(evidence, options or SchemeOptions(), schemes)


def _compared(
    evidence: Evidence, options: SchemeOptions, schemes: Sequence[str]
) -> SchemeComparison:
    """Weigh the rules of evidence by some schemes, and measure the composed ratings of each."""
    if options.rule is None:
        lowest = evidence.rule_ids[evidence.rule_indices_by_entropy()[0]]
        options = options.model_copy(update={"rule": lowest})
    all_pairs = evidence.read_pairs()
    pairs = all_pairs.complete()
    group_P = pairs.group_P
    margin_sds = rule_margin_sds(all_pairs.margin_PR)
    draws = _draw_halves(pairs, options)
    notes = [
        *pair_notes(evidence.rules, pairs, total=all_pairs.num_pairs),
        *_constant_rule_notes(evidence.rules),
    ]
    rows: list[SchemeRow] = []
    held_out_accuracies: list[HeldOut] = []
    has_labels = evidence.study and any(labels for _, labels in people_labels(evidence.study))
    for scheme in map(load_scheme, schemes):
        if scheme.name == "agreement" and not has_labels:
            continue
        try:
            vector = scheme.weigh(evidence.with_pairs(pairs), options)
        except EncoreError as error:  # bad input, or no optimum
            # An unknown rule is a mistake of the caller, not a limit of the data.
            if "rule" in scheme.options:
                raise
            notes.append(f"left out: {error}")
            continue
        on_held_out = None
        if scheme.uses_labels:
            on_held_out = held_out(scheme, evidence.with_pairs(pairs), options)
            notes += fold_notes(scheme.name, on_held_out)
            held_out_accuracies += [on_held_out] if on_held_out else []
        (outcome,) = composed_outcomes(pairs, np.array([vector.weights]), group_P)
        rows.append(_row(scheme, vector, outcome, on_held_out, margin_sds, draws["random"]))
    return SchemeComparison(
        rule_ids=evidence.rule_ids,
        margin_sds=margin_sds,
        rows=RecordTable(rows),
        draws=tuple(_draws(scheme, half_V) for scheme, half_V in draws.items()),
        num_pairs=pairs.num_pairs,
        num_prompts=pairs.num_prompts,
        num_pairs_total=all_pairs.num_pairs,
        num_folds=held_out_accuracies[0].num_folds if held_out_accuracies else None,
        folds_grouped_by=held_out_accuracies[0].grouped_by if held_out_accuracies else None,
        notes=tuple(notes),
    )


def _constant_rule_notes(rules: Sequence[RuleStats]) -> Iterator[str]:
    """Yield a sentence for each rule whose ratings are all the same."""
    for rule in rules:
        if rule.is_constant:
            yield (
                f"rule {rule.rule_id} is constant: whatever its weight, it moves no ranking; "
                "encore gives it the largest, inverse-sd and bradley-terry none"
            )


def scheme_label(vector: WeightVector) -> str:
    """Return the name of a scheme with its parameters, e.g. ``encore (τ 2)``."""
    prefixes = {"tau": "τ ", "k": "k ", "seed": "seed ", "rule": ""}
    params = [
        prefix + (f"{value:g}" if isinstance(value, float) else str(value))
        for key, prefix in prefixes.items()
        if (value := vector.params.get(key)) is not None
    ]
    return vector.scheme + (f" ({', '.join(params)})" if params else "")


def pair_notes(rules: Sequence[RuleStats], pairs: PairRatings, *, total: int) -> Iterator[str]:
    """Yield a note on the pairs that are left out because some rule did not rate them fully."""
    num_pairs = pairs.num_pairs
    if pairs.not_applicable_2PR is not None:
        yield (
            f"accuracies are over the {num_pairs:,} of {total:,} pairs whose two responses every "
            "rule rated or does not apply to; a response is composed of the rules that apply to "
            "it, with their weights divided by their sum"
        )
    elif num_pairs < total:
        scarcest = min(rules, key=lambda rule: rule.num_pairs)
        yield (
            f"accuracies are over the {num_pairs:,} of {total:,} pairs whose two responses every "
            f"rule rated; the least complete is {scarcest.rule_id}, with {scarcest.num_pairs:,}"
        )


def _row(
    scheme: WeightingScheme,
    vector: WeightVector,
    outcome: Outcome,
    on_held_out: HeldOut | None,
    margin_sds: Sequence[float | None],
    random_half_V: _Floats,
) -> SchemeRow:
    half = outcome.half_credit
    beats_random = None
    if half.value is not None:
        is_lower_V, is_equal_V = random_half_V < half.value, random_half_V == half.value
        beats_random = float((is_lower_V + 0.5 * is_equal_V).mean())
    return SchemeRow(
        label=scheme_label(vector),
        vector=vector,
        uses_labels=scheme.uses_labels,
        effective_weights=tuple(
            None if sd is None else weight * sd
            for weight, sd in zip(vector.weights, margin_sds, strict=True)
        ),
        accuracy=outcome.accuracy,
        accuracy_low=half.low,
        accuracy_high=half.high,
        held_out_accuracy=on_held_out.accuracy if on_held_out else None,
        held_out_low=on_held_out.accuracy_low if on_held_out else None,
        held_out_high=on_held_out.accuracy_high if on_held_out else None,
        beats_random=beats_random,
    )


def _draw_halves(pairs: PairRatings, options: SchemeOptions) -> dict[str, _Floats]:
    """Return the half-credit accuracy of each draw by scheme, shape [V]; empty without pairs.

    Schemes ``random`` and ``random-k`` are drawn at the options' seed and those after it. Scheme
    ``single`` has every rule once, whose mean the paper calls "Single Rules".
    """
    rule_ids, seeds = pairs.rule_ids, range(options.seed, options.seed + NUM_RANDOM)
    drawn_weights = {
        "random": [random_weights(rule_ids, seed=seed) for seed in seeds],
        "random-k": [random_k_weights(rule_ids, k=options.k, seed=seed) for seed in seeds],
        "single": list(np.eye(len(rule_ids))),
    }
    halves = {}
    for scheme, weight_VR in drawn_weights.items():
        outcomes = composed_outcomes(pairs, np.array(weight_VR))
        halves[scheme] = np.array(
            [outcome.accuracy.half for outcome in outcomes if pairs.num_pairs], dtype=np.float64
        )
    return halves


def _draws(scheme: str, half_V: _Floats) -> Draws:
    if not len(half_V):
        return Draws(scheme=scheme)
    low, high = middle_95(half_V)
    mean = float(half_V.mean())
    return Draws(scheme=scheme, num_draws=len(half_V), half_mean=mean, half_low=low, half_high=high)


# --- temperatures ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TauSweep:
    """ENCORE's weights and the accuracy of the composed ratings at several temperatures.

    Attributes:
        rule_ids: The rules, in the order of the weights.
        taus: The temperatures, as asked for.
        weights: Weights at each temperature, in the order of the rules.
        accuracies: Accuracy of the composed ratings at each temperature, over the same pairs.
        accuracy_lows: Lower end of the 95 % interval of half-credit accuracy; None without pairs.
        accuracy_highs: Upper end of that interval.
        lowest_entropy_accuracy: Accuracy in the limit of tau 0: rules of lowest entropy share all
            weight.
        uniform_accuracy: Accuracy in the limit of a large tau.
        num_pairs: Pairs whose two responses every rule rated.
        num_prompts: Number of their prompts; None if prompts are not known.
        num_pairs_total: All pairs, rated fully or not.
        notes: Sentences on what limits these figures.
    """

    rule_ids: tuple[str, ...]
    taus: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...]
    accuracies: tuple[Accuracy, ...]
    accuracy_lows: tuple[float | None, ...]
    accuracy_highs: tuple[float | None, ...]
    lowest_entropy_accuracy: Accuracy
    uniform_accuracy: Accuracy
    num_pairs: int
    num_prompts: int | None
    num_pairs_total: int
    notes: tuple[str, ...]


def sweep_tau(evidence: Evidence, *, taus: Sequence[float] = DEFAULT_TAUS) -> TauSweep:
    """Weigh the rules by entropy at several temperatures.

    Args:
        evidence: Evidence of the rules.
        taus: At least one temperature, finite and above 0.

    Raises:
        InputError: A temperature is out of its range.
    """
    taus = tuple(SchemeOptions(tau=tau).tau for tau in taus)
    entropy_R = evidence.entropy_R
    is_lowest_R = entropy_R == entropy_R.min()
    limits = (is_lowest_R / is_lowest_R.sum(), np.full_like(entropy_R, 1 / len(entropy_R)))
    weight_TR = np.array([entropy_weights(entropy_R, tau=tau) for tau in taus])
    all_pairs = evidence.read_pairs()
    pairs = all_pairs.complete()
    lowest, uniform, *outcomes = composed_outcomes(
        pairs, np.array([*limits, *weight_TR]), pairs.group_P
    )
    notes = pair_notes(evidence.rules, pairs, total=all_pairs.num_pairs)
    return TauSweep(
        rule_ids=evidence.rule_ids,
        taus=taus,
        weights=tuple(map(tuple, weight_TR.tolist())),
        accuracies=tuple(outcome.accuracy for outcome in outcomes),
        accuracy_lows=tuple(outcome.half_credit.low for outcome in outcomes),
        accuracy_highs=tuple(outcome.half_credit.high for outcome in outcomes),
        lowest_entropy_accuracy=lowest.accuracy,
        uniform_accuracy=uniform.accuracy,
        num_pairs=pairs.num_pairs,
        num_prompts=pairs.num_prompts,
        num_pairs_total=all_pairs.num_pairs,
        notes=tuple(notes),
    )
