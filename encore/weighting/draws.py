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


def draw_random(
    margin_PR: _Floats, rule_ids: Sequence[str], *, options: SchemeOptions, num_draws: int
) -> Draws:
    """Scheme ``random`` at one seed after another, from the options' seed on."""
    seeds = range(options.seed, options.seed + num_draws)
    return _draws("random", margin_PR, [random_weights(rule_ids, seed=seed) for seed in seeds])


def draw_random_k(
    margin_PR: _Floats, rule_ids: Sequence[str], *, options: SchemeOptions, num_draws: int
) -> Draws:
    """Scheme ``random-k`` at one seed after another, from the options' seed on."""
    vectors = [
        random_k_weights(rule_ids, k=options.k, seed=seed)
        for seed in range(options.seed, options.seed + num_draws)
    ]
    return _draws("random-k", margin_PR, vectors)


def each_single(margin_PR: _Floats) -> Draws:
    """Scheme ``single`` for every rule: what the paper's "Single Rules" average, without chance."""
    return _draws("single", margin_PR, list(np.eye(margin_PR.shape[1])))


def _draws(scheme: str, margin_PR: _Floats, vectors: Sequence[_Floats]) -> Draws:
    weight_VR = np.array(vectors).reshape(len(vectors), margin_PR.shape[1])
    halves = [outcome.accuracy.half for outcome in composed_outcomes(margin_PR, weight_VR)]
    return Draws(scheme=scheme, half_accuracies=tuple(half for half in halves if half is not None))
