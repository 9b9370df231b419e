"""Schemes that draw by chance, drawn often: what chance alone would reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.weighting.composed import composed_outcomes
from encore.weighting.random import random_weights
from encore.weighting.random_k import random_k_weights
from encore.weighting.scheme import SchemeOptions

# Suffixes: P pairs, R rules, V weight vectors.

NUM_RANDOM = 1000

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Half-credit accuracy of many draws of one scheme.

    The paper reports the mean of 3 draws; the spread says what a single one is worth.

    Attributes:
        scheme: ``random``, ``random-k`` or ``single`` (every rule once).
        half_accuracies: One a draw; empty without pairs.
    """

    scheme: str
    half_accuracies: tuple[float, ...]

    @property
    def num_draws(self) -> int:
        """How many."""
        return len(self.half_accuracies)

    @property
    def mean(self) -> float | None:
        """Over the draws; None without any."""
        return float(np.mean(self.half_accuracies)) if self.half_accuracies else None

    @property
    def spread(self) -> tuple[float, float] | tuple[None, None]:
        """Quantiles of the draws, 2.5 and 97.5 %: of chance between draws, not between pairs."""
        if not self.half_accuracies:
            return None, None
        low, high = np.quantile(self.half_accuracies, [0.025, 0.975])
        return float(low), float(high)

    def share_below(self, half: float | None) -> float | None:
        """The share of draws that an accuracy beats; an equal one counts one half."""
        if half is None or not self.half_accuracies:
            return None
        drawn_V = np.array(self.half_accuracies)
        return float(((drawn_V < half) + 0.5 * (drawn_V == half)).mean())


def draw_all(
    margin_PR: _Floats, rule_ids: Sequence[str], *, options: SchemeOptions, num_draws: int
) -> tuple[Draws, Draws, Draws]:
    """Schemes ``random`` and ``random-k`` at seeds from the options' on; ``single``, every rule.

    The last is what the paper's "Single Rules" average, without chance.
    """
    seeds = range(options.seed, options.seed + num_draws)
    vectors = {
        "random": [random_weights(rule_ids, seed=seed) for seed in seeds],
        "random-k": [random_k_weights(rule_ids, k=options.k, seed=seed) for seed in seeds],
        "single": list(np.eye(len(rule_ids))),
    }
    random, random_k, single = (
        Draws(scheme=name, half_accuracies=_halves(margin_PR, found))
        for name, found in vectors.items()
    )
    return random, random_k, single


def _halves(margin_PR: _Floats, vectors: Sequence[_Floats]) -> tuple[float, ...]:
    outcomes = composed_outcomes(margin_PR, np.array(vectors).reshape(-1, margin_PR.shape[1]))
    halves = (outcome.accuracy.half for outcome in outcomes)
    return tuple(half for half in halves if half is not None)
