"""All weighting schemes side by side on the same pairs; scheme encore over its temperature."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.resampling import middle_95
from encore.analysis.statistics import Accuracy, RuleStats
from encore.core.errors import EncoreError
from encore.data.annotations import people_labels
from encore.warehouse import PairRatings, Ratings
from encore.weighting.composed_ratings import Outcome, composed_outcomes, rule_margin_sds
from encore.weighting.folds import GroupedBy, HeldOut, fold_notes, held_out
from encore.weighting.scheme import Evidence, SchemeOptions, WeightingScheme
from encore.weighting.schemes import SCHEMES, SCHEMES_OF_RATINGS, load_scheme
from encore.weighting.schemes.encore import entropy_weights
from encore.weighting.schemes.random import random_weights
from encore.weighting.schemes.random_k import random_k_weights
from encore.weighting.weigh import open_evidence
from encore.weighting.weight_vector import WeightVector

# Suffixes: P pairs, R rules, V weight vectors, T temperatures.

NUM_RANDOM = 1000
#: Entropies of ratings lie within some two nats: below the first all but equal entropies are told
#: apart, above the last weights differ by less than a few per cent.
DEFAULT_TAUS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeRow:
    """One scheme's weights and how the ratings that they compose rank people's preferences.

    Attributes:
        label: The scheme with its parameters, for people.
        vector: The weights.
        uses_labels: Whether the labels that ``accuracy`` is measured with entered the weights.
        uses_benchmark: Whether a benchmark's answers did; no scheme of ours takes any.
        effective_weights: Weight times sd of the margin, for each rule; None where it has no sd.
        accuracy: Of the composed ratings, on all compared pairs: flattered if ``uses_labels``.
        accuracy_low: Lower end of the 95 % interval of ``accuracy.half``; None without pairs.
        accuracy_high: Upper end.
        held_out_accuracy: On pairs the weights were not learnt from; None for schemes that learn
            from no label, whose ``accuracy`` is held out as it is.
        held_out_low: Lower end of the 95 % interval of ``held_out_accuracy.half``.
        held_out_high: Upper end.
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
    """Half-credit accuracy of many draws of one scheme; None, as all below, without pairs.

    The paper reports the mean of 3 draws; the quantiles say what a single one is worth.

    Attributes:
        scheme: ``random``, ``random-k`` or ``single`` (every rule once).
        num_draws: How many.
        half_mean: Over the draws.
        half_low: 2.5 % quantile of the draws: of chance between draws, not between pairs.
        half_high: 97.5 % quantile.
    """

    scheme: str
    num_draws: int = 0
    half_mean: float | None = None
    half_low: float | None = None
    half_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeComparison:
    """Weighting schemes on the same rules and the same pairs.

    Attributes:
        rule_ids: The rules, in the vectors' order.
        margin_sds: Standard deviation (ddof 1) of each rule's margins, over all pairs it rated.
        rows: One a scheme.
        draws: What draws by chance reach: random weights, k random rules, every single rule.
        num_pairs: Pairs compared: those whose two responses every rule rated.
        num_pairs_total: All pairs.
        num_folds: Of the held-out accuracies; None where there are none.
        folds_grouped_by: What is whole in one fold; None where there are no held-out accuracies.
        notes: Plain sentences on what limits these figures, schemes left out among them.
    """

    rule_ids: tuple[str, ...]
    margin_sds: tuple[float | None, ...]
    rows: tuple[SchemeRow, ...]
    draws: tuple[Draws, ...]
    num_pairs: int
    num_pairs_total: int
    num_folds: int | None
    folds_grouped_by: GroupedBy | None
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore weights --compare --json``."""
        found = dataclasses.asdict(self)
        # The vector's keys stand beside the others of a row.
        return {**found, "rows": [{**row.pop("vector"), **row} for row in found["rows"]]}


def compare_schemes(
    ratings: str | Path | Ratings | Any, *, options: SchemeOptions | None = None
) -> SchemeComparison:
    """Weigh the rules by every scheme and measure what each composes.

    Scheme ``agreement`` is among them where the study has labels of people.

    Every scheme is measured on the same pairs: those whose two responses every rule rated.
    Everything is held in memory: 16 bytes a pair and rule, twice at the peak.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`.
        options: Of all schemes. Scheme ``single`` takes the rule of lowest entropy unless one is
            named. Random weights and k random rules are drawn at seeds from this one on.

    Raises:
        InputError: No ratings table, a rule without ratings, or a rule that is not there.
    """
    with open_evidence(ratings) as evidence:
        return compare_schemes_on(evidence, options=options or SchemeOptions())


def compare_schemes_on(evidence: Evidence, *, options: SchemeOptions) -> SchemeComparison:
    """`compare_schemes` for evidence in hand."""
    if options.rule is None:
        lowest = evidence.rule_ids[evidence.places_by_entropy()[0]]
        options = options.model_copy(update={"rule": lowest})
    all_pairs = evidence.read_pairs()
    pairs = all_pairs.complete()
    margin_sds = rule_margin_sds(all_pairs.margin_PR)
    draws = _draw_halves(pairs, options)
    notes = [*pair_notes(evidence.rules, num_pairs=pairs.num_pairs, total=all_pairs.num_pairs)]
    notes += [
        f"rule {rule.rule_id} is constant: whatever its weight, it moves no ranking; encore gives "
        "it the largest, inverse-sd and bradley-terry none"
        for rule in evidence.rules
        if rule.num_levels == 1
    ]
    rows: list[SchemeRow] = []
    tests: list[HeldOut] = []
    has_labels = evidence.study and any(labels for _, labels in people_labels(evidence.study))
    for scheme in map(load_scheme, SCHEMES if has_labels else SCHEMES_OF_RATINGS):
        try:
            vector = scheme.weigh(evidence.with_pairs(pairs), options)
        except EncoreError as error:  # bad input, or no optimum
            # A rule that is not there is the caller's slip, not a limit of the data.
            if "rule" in scheme.options:
                raise
            notes.append(f"left out: {error}")
            continue
        test = None
        if scheme.uses_labels:
            test = held_out(scheme, evidence.with_pairs(pairs), options)
            notes += fold_notes(scheme.name, test)
            tests += [test] if test else []
        (outcome,) = composed_outcomes(pairs.margin_PR, np.array([vector.weights]))
        rows.append(_row(scheme, vector, outcome, test, margin_sds, random_V=draws["random"]))
    return SchemeComparison(
        rule_ids=evidence.rule_ids,
        margin_sds=margin_sds,
        rows=tuple(rows),
        draws=tuple(_draws(scheme, half_V) for scheme, half_V in draws.items()),
        num_pairs=pairs.num_pairs,
        num_pairs_total=all_pairs.num_pairs,
        num_folds=tests[0].num_folds if tests else None,
        folds_grouped_by=tests[0].grouped_by if tests else None,
        notes=tuple(notes),
    )


def scheme_label(vector: WeightVector) -> str:
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


def _row(
    scheme: WeightingScheme,
    vector: WeightVector,
    outcome: Outcome,
    test: HeldOut | None,
    margin_sds: Sequence[float | None],
    *,
    random_V: _Floats,
) -> SchemeRow:
    low, high = outcome.interval
    half = outcome.accuracy.half
    beaten = None
    if half is not None:
        beaten = float(((random_V < half) + 0.5 * (random_V == half)).mean())
    return SchemeRow(
        label=scheme_label(vector),
        vector=vector,
        uses_labels=scheme.uses_labels,
        effective_weights=tuple(
            None if sd is None else weight * sd
            for weight, sd in zip(vector.weights, margin_sds, strict=True)
        ),
        accuracy=outcome.accuracy,
        accuracy_low=low,
        accuracy_high=high,
        held_out_accuracy=test.accuracy if test else None,
        held_out_low=test.accuracy_low if test else None,
        held_out_high=test.accuracy_high if test else None,
        beats_random=beaten,
    )


def _draw_halves(pairs: PairRatings, options: SchemeOptions) -> dict[str, _Floats]:
    """Half-credit accuracies, one a draw, shape [V]; none without pairs.

    Schemes ``random`` and ``random-k`` at seeds from the options' on; of ``single`` every rule:
    what the paper's "Single Rules" average, without chance.
    """
    rule_ids, seeds = pairs.rule_ids, range(options.seed, options.seed + NUM_RANDOM)
    vectors = {
        "random": [random_weights(rule_ids, seed=seed) for seed in seeds],
        "random-k": [random_k_weights(rule_ids, k=options.k, seed=seed) for seed in seeds],
        "single": list(np.eye(len(rule_ids))),
    }
    halves = {}
    for scheme, weight_VR in vectors.items():
        outcomes = composed_outcomes(pairs.margin_PR, np.array(weight_VR))
        halves[scheme] = np.array(
            [one.accuracy.half for one in outcomes if pairs.num_pairs], dtype=np.float64
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
    """ENCORE's weights and the accuracy of what they compose, at one temperature after another.

    Attributes:
        rule_ids: The rules.
        taus: The temperatures.
        weights: Weights at each, in the order of the rules.
        accuracies: Of the composed ratings at each, over the same pairs.
        accuracy_lows: Lower end of the 95 % interval of half-credit accuracy; None without pairs.
        accuracy_highs: Upper end.
        lowest_entropy_accuracy: In the limit tau to 0: rules of lowest entropy share all weight.
        uniform_accuracy: In the limit of a large tau.
        num_pairs: Pairs whose two responses every rule rated.
        num_pairs_total: All pairs.
        notes: Plain sentences on what limits these figures.
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
    num_pairs_total: int
    notes: tuple[str, ...]


def sweep_tau(evidence: Evidence, *, taus: Sequence[float] = DEFAULT_TAUS) -> TauSweep:
    """Weigh the rules by entropy at several temperatures.

    Args:
        evidence: Of the rules.
        taus: Finite and above 0, in the order wanted; at least one.

    Raises:
        InputError: An impossible temperature.
    """
    taus = tuple(SchemeOptions(tau=tau).tau for tau in taus)
    entropy_R = evidence.entropy_R
    is_lowest_R = entropy_R == entropy_R.min()
    ends = (is_lowest_R / is_lowest_R.sum(), np.full_like(entropy_R, 1 / len(entropy_R)))
    weight_TR = np.array([entropy_weights(entropy_R, tau=tau) for tau in taus])
    all_pairs = evidence.read_pairs()
    pairs = all_pairs.complete()
    lowest, uniform, *outcomes = composed_outcomes(pairs.margin_PR, np.array([*ends, *weight_TR]))
    lows, highs = zip(*(outcome.interval for outcome in outcomes), strict=True)
    notes = pair_notes(evidence.rules, num_pairs=pairs.num_pairs, total=all_pairs.num_pairs)
    return TauSweep(
        rule_ids=evidence.rule_ids,
        taus=taus,
        weights=tuple(map(tuple, weight_TR.tolist())),
        accuracies=tuple(outcome.accuracy for outcome in outcomes),
        accuracy_lows=lows,
        accuracy_highs=highs,
        lowest_entropy_accuracy=lowest.accuracy,
        uniform_accuracy=uniform.accuracy,
        num_pairs=pairs.num_pairs,
        num_pairs_total=all_pairs.num_pairs,
        notes=tuple(notes),
    )
