"""All weighting schemes side by side on the same pairs; scheme encore over its temperature."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.statistics import Accuracy, RuleStats
from encore.errors import EncoreError, InputError
from encore.warehouse import Ratings
from encore.weighting import SCHEMES, load_scheme
from encore.weighting.composed import Outcome, composed_outcomes, margin_sds_of
from encore.weighting.encore import entropy_weights
from encore.weighting.folds import GroupedBy, HeldOut, fold_notes, held_out
from encore.weighting.random import random_weights
from encore.weighting.random_k import random_k_weights
from encore.weighting.scheme import Evidence, SchemeOptions, WeightingScheme
from encore.weighting.vector import WeightVector
from encore.weighting.weigh import open_evidence

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

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON has it: the vector's keys beside the others."""
        found = dataclasses.asdict(self)
        del found["vector"]
        return self.vector.as_dict() | found


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
    num_draws: int
    half_mean: float | None = None
    half_low: float | None = None
    half_high: float | None = None


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

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore weights --compare --json``."""
        kept = ("margin_sds", "num_pairs", "num_pairs_total", "num_folds", "folds_grouped_by")
        return {
            "rule_ids": [rule.rule_id for rule in self.rules],
            **{name: getattr(self, name) for name in kept},
            "rows": [row.as_dict() for row in self.rows],
            "draws": [dataclasses.asdict(one) for one in self.draws],
            "notes": self.notes,
        }


def compare_schemes(
    ratings: str | Path | Ratings | Any,
    *,
    options: SchemeOptions | None = None,
    num_random: int = NUM_RANDOM,
) -> SchemeComparison:
    """Weigh the rules by every scheme and measure what each composes.

    Every scheme is measured on the same pairs: those whose two responses every rule rated.
    Everything is held in memory: 16 bytes a pair and rule, twice at the peak.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`.
        options: Of all schemes. Scheme ``single`` takes the rule of lowest entropy unless one is
            named.
        num_random: Draws of random weights and of k random rules, at seeds from the options' on.

    Raises:
        InputError: No ratings table, a rule without ratings, or a rule that is not there.
    """
    with open_evidence(ratings) as evidence:
        return compare(evidence, options=options or SchemeOptions(), num_random=num_random)


def compare(
    evidence: Evidence, *, options: SchemeOptions, num_random: int = NUM_RANDOM
) -> SchemeComparison:
    """`compare_schemes` for evidence in hand."""
    if options.rule is None:
        lowest = evidence.rule_ids[evidence.places_by_entropy()[0]]
        options = options.model_copy(update={"rule": lowest})
    all_pairs = evidence.read_pairs()
    pairs = all_pairs.complete()
    margin_sds = margin_sds_of(all_pairs.margin_PR)
    weighed, notes = _weigh_all(evidence.over(pairs), options)
    outcomes = composed_outcomes(
        pairs.margin_PR, np.array([vector.weights for _, vector, _ in weighed])
    )
    drawn = _draw_halves(pairs.margin_PR, pairs.rule_ids, options=options, num_draws=num_random)
    notes += pair_notes(evidence.rules, num_pairs=pairs.num_pairs, total=all_pairs.num_pairs)
    notes += [
        f"rule {rule.rule_id} is constant: whatever its weight, it moves no ranking; encore gives "
        "it the largest, inverse-sd and bradley-terry none"
        for rule in evidence.rules
        if rule.num_levels == 1
    ]
    tests = {scheme.name: test for scheme, _, test in weighed if scheme.uses_labels}
    notes += [note for name, test in tests.items() for note in fold_notes(name, test)]
    tested = next((test for test in tests.values() if test is not None), None)
    return SchemeComparison(
        rules=evidence.rules,
        margin_sds=margin_sds,
        rows=tuple(
            _row(*one, outcome, margin_sds, random_V=drawn["random"])
            for one, outcome in zip(weighed, outcomes, strict=True)
        ),
        draws=tuple(_draws(scheme, half_V) for scheme, half_V in drawn.items()),
        num_pairs=pairs.num_pairs,
        num_pairs_total=all_pairs.num_pairs,
        num_folds=tested.num_folds if tested else None,
        folds_grouped_by=tested.grouped_by if tested else None,
        notes=tuple(notes),
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


_Weighed = tuple[WeightingScheme, WeightVector, HeldOut | None]


def _weigh_all(evidence: Evidence, options: SchemeOptions) -> tuple[list[_Weighed], list[str]]:
    """Vector and test of each scheme that can weigh these rules, and why the others cannot."""
    weighed: list[_Weighed] = []
    left_out: list[str] = []
    for scheme in map(load_scheme, SCHEMES):
        try:
            vector = scheme.weigh(evidence, options)
        except EncoreError as error:  # bad input, or no optimum
            # A rule that is not there is the caller's slip, not a limit of the data.
            if "rule" in scheme.options:
                raise
            left_out.append(f"left out: {error}")
            continue
        test = held_out(scheme, evidence, options) if scheme.uses_labels else None
        weighed.append((scheme, vector, test))
    return weighed, left_out


def _row(
    scheme: WeightingScheme,
    vector: WeightVector,
    test: HeldOut | None,
    outcome: Outcome,
    margin_sds: Sequence[float | None],
    *,
    random_V: _Floats,
) -> SchemeRow:
    low, high = outcome.interval
    half = outcome.accuracy.half
    beaten_V = (random_V < half) + 0.5 * (random_V == half) if half is not None else random_V
    return SchemeRow(
        label=label_of(vector),
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
        beats_random=float(beaten_V.mean()) if len(beaten_V) else None,
    )


def _draw_halves(
    margin_PR: _Floats, rule_ids: Sequence[str], *, options: SchemeOptions, num_draws: int
) -> dict[str, _Floats]:
    """Half-credit accuracies, one a draw, shape [V]; none without pairs.

    Schemes ``random`` and ``random-k`` at seeds from the options' on; of ``single`` every rule:
    what the paper's "Single Rules" average, without chance.
    """
    seeds = range(options.seed, options.seed + num_draws)
    vectors = {
        "random": [random_weights(rule_ids, seed=seed) for seed in seeds],
        "random-k": [random_k_weights(rule_ids, k=options.k, seed=seed) for seed in seeds],
        "single": list(np.eye(len(rule_ids))),
    }
    return {
        scheme: np.array(
            [one.accuracy.half for one in composed_outcomes(margin_PR, np.array(weight_VR))]
            if len(margin_PR)
            else [],
            dtype=np.float64,
        )
        for scheme, weight_VR in vectors.items()
    }


def _draws(scheme: str, half_V: _Floats) -> Draws:
    if not len(half_V):
        return Draws(scheme=scheme, num_draws=0)
    low, high = np.quantile(half_V, [0.025, 0.975]).tolist()
    mean = float(half_V.mean())
    return Draws(scheme=scheme, num_draws=len(half_V), half_mean=mean, half_low=low, half_high=high)


# --- temperatures ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TauSweep:
    """ENCORE's weights and the accuracy of what they compose, at one temperature after another.

    Attributes:
        rule_ids: The rules.
        taus: The temperatures.
        weights_TR: Weights at each, in the order of the rules.
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
    weights_TR: tuple[tuple[float, ...], ...]
    accuracies: tuple[Accuracy, ...]
    accuracy_lows: tuple[float | None, ...]
    accuracy_highs: tuple[float | None, ...]
    lowest_entropy_accuracy: Accuracy
    uniform_accuracy: Accuracy
    num_pairs: int
    num_pairs_total: int
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore weights --sweep --json``."""
        found = dataclasses.asdict(self)
        return {"weights": found.pop("weights_TR"), **found}


def sweep(evidence: Evidence, *, taus: Sequence[float] = DEFAULT_TAUS) -> TauSweep:
    """Weigh the rules by entropy at several temperatures.

    Args:
        evidence: Of the rules.
        taus: Finite and above 0, in the order wanted.

    Raises:
        InputError: No temperature or an impossible one.
    """
    taus = tuple(SchemeOptions(tau=tau).tau for tau in taus)
    if not taus:
        raise InputError("taus: none given; expected at least one temperature")
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
        weights_TR=tuple(map(tuple, weight_TR.tolist())),
        accuracies=tuple(outcome.accuracy for outcome in outcomes),
        accuracy_lows=lows,
        accuracy_highs=highs,
        lowest_entropy_accuracy=lowest.accuracy,
        uniform_accuracy=uniform.accuracy,
        num_pairs=pairs.num_pairs,
        num_pairs_total=all_pairs.num_pairs,
        notes=tuple(notes),
    )
