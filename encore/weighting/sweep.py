"""ENCORE's weights over its temperature, from the rule of lowest entropy to uniform."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.statistics import Accuracy
from encore.errors import InputError
from encore.weighting.comparison import pair_notes
from encore.weighting.composed import complete_pairs, composed_outcomes
from encore.weighting.encore import entropy_weights
from encore.weighting.evidence import Evidence
from encore.weighting.opening import open_evidence
from encore.weighting.scheme import SchemeOptions

# Suffixes: T temperatures, R rules, V weight vectors.

#: Entropies of ratings lie within some two nats: below the first all but equal entropies are told
#: apart, above the last weights differ by less than a few per cent.
DEFAULT_TAUS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


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
        num_shards: Shards of the run's plan; 0 where there is no plan.
        num_missing_shards: Those that are not in it.
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
    notes: tuple[str, ...] = ()
    num_shards: int = 0
    num_missing_shards: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``encore weights --sweep --json``."""
        return {
            "rule_ids": list(self.rule_ids),
            "taus": list(self.taus),
            "weights": [list(weights) for weights in self.weights_TR],
            "accuracies": [dataclasses.asdict(accuracy) for accuracy in self.accuracies],
            "accuracy_lows": list(self.accuracy_lows),
            "accuracy_highs": list(self.accuracy_highs),
            "lowest_entropy_accuracy": dataclasses.asdict(self.lowest_entropy_accuracy),
            "uniform_accuracy": dataclasses.asdict(self.uniform_accuracy),
            "num_pairs": self.num_pairs,
            "num_pairs_total": self.num_pairs_total,
            "notes": list(self.notes),
        }


def tau_sweep(
    ratings: str | Path | Any,
    *,
    taus: Sequence[float] | None = None,
    run: str | None = None,
    judge: str | None = None,
) -> TauSweep:
    """Weigh the rules by entropy at several temperatures.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`.
        taus: Finite and above 0, in the order wanted; `DEFAULT_TAUS` by default.
        run: Which run, where there are several: a unique prefix of its key.
        judge: Which judge, where there are several.

    Raises:
        InputError: No ratings table, a rule without ratings, no temperature or an impossible one.
    """
    with open_evidence(ratings, run=run, judge=judge) as evidence:
        return sweep(evidence, taus=taus)


def sweep(evidence: Evidence, *, taus: Sequence[float] | None = None) -> TauSweep:
    """`tau_sweep` for evidence in hand."""
    chosen = [SchemeOptions(tau=tau).tau for tau in (DEFAULT_TAUS if taus is None else taus)]
    if not chosen:
        raise InputError("taus: none given; expected at least one temperature")
    entropy_R = evidence.entropy_R
    all_pairs = evidence.read_pairs()
    pairs = complete_pairs(all_pairs)
    weight_TR = [entropy_weights(entropy_R, tau=tau) for tau in chosen]
    weight_VR = np.array([_of_lowest(entropy_R), np.full_like(entropy_R, 1 / len(entropy_R))])
    lowest, uniform, *outcomes = composed_outcomes(
        pairs.margin_PR, np.concatenate([weight_VR, weight_TR])
    )
    intervals = [outcome.interval for outcome in outcomes]
    return TauSweep(
        rule_ids=evidence.rule_ids,
        taus=tuple(chosen),
        weights_TR=tuple(tuple(weight_R.tolist()) for weight_R in weight_TR),
        accuracies=tuple(outcome.accuracy for outcome in outcomes),
        accuracy_lows=tuple(low for low, _ in intervals),
        accuracy_highs=tuple(high for _, high in intervals),
        lowest_entropy_accuracy=lowest.accuracy,
        uniform_accuracy=uniform.accuracy,
        num_pairs=pairs.num_pairs,
        num_pairs_total=all_pairs.num_pairs,
        notes=tuple(
            pair_notes(evidence.rules, num_pairs=pairs.num_pairs, total=all_pairs.num_pairs)
        ),
        num_shards=evidence.origin.num_shards,
        num_missing_shards=evidence.origin.num_missing_shards,
    )


def _of_lowest(entropy_R: NDArray[np.float64]) -> NDArray[np.float64]:
    """The limit of small temperatures: all weight on the lowest entropy, shared where it is met."""
    is_lowest_R = entropy_R == entropy_R.min()
    return np.asarray(is_lowest_R / is_lowest_R.sum(), dtype=np.float64)
