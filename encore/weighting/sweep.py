"""ENCORE's weights over its temperature, from the rule of lowest entropy to uniform."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from encore.analysis.statistics import Accuracy
from encore.errors import InputError
from encore.weighting.comparison import pair_notes
from encore.weighting.composed import composed_outcomes
from encore.weighting.encore import entropy_weights
from encore.weighting.evidence import Evidence
from encore.weighting.scheme import SchemeOptions

# Suffixes: T temperatures, R rules.

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
        found = dataclasses.asdict(self)
        del found["num_shards"], found["num_missing_shards"]
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
    weight_TR = [entropy_weights(entropy_R, tau=tau) for tau in taus]
    all_pairs = evidence.read_pairs()
    pairs = all_pairs.complete()
    lowest, uniform, *outcomes = composed_outcomes(pairs.margin_PR, np.array([*ends, *weight_TR]))
    return TauSweep(
        rule_ids=evidence.rule_ids,
        taus=taus,
        weights_TR=tuple(tuple(weight_R.tolist()) for weight_R in weight_TR),
        accuracies=tuple(outcome.accuracy for outcome in outcomes),
        accuracy_lows=tuple(outcome.interval[0] for outcome in outcomes),
        accuracy_highs=tuple(outcome.interval[1] for outcome in outcomes),
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
