"""Accuracy on a benchmark: credit for each pair, a score for each subset, the headline.

What is counted is a *unit*: a row of the benchmark with one chosen response. Nearly always a row is
one pair. Where it has several rejected responses, its pairs are one choice among them all, right or
wrong as a whole.

Suffixes: P pairs, U units, S units of one subset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.definition import Benchmark, Ties, Weighting
from encore.core.errors import InputError
from encore.weighting.composed_ratings import TIE_TOLERANCE, half_credit_interval, pair_credits

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsetScore:
    """How a model does on one subset.

    Attributes:
        subset: Its name.
        num_pairs: Units counted: pairs, or rows where a row has several rejected responses.
        num_wins: Units with full credit.
        num_ties: Units with no loss but a tie in them; None where ties are losses and nobody said
            which losses are ties.
        num_losses: Those without credit that are no ties. In a mean over draws many a unit is
            neither won nor lost.
        accuracy: Mean credit, 0 to 1.
        ci_low: Lower end of the 95 % interval: Wilson's, with the variance of the credits.
        ci_high: Upper end.
    """

    subset: str
    num_pairs: int
    num_wins: int
    num_ties: int | None
    num_losses: int
    accuracy: float
    ci_low: float
    ci_high: float

    @property
    def score(self) -> float:
        """The accuracy, as a headline calls it."""
        return self.accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The one figure of a benchmark.

    Attributes:
        name: What the benchmark calls it.
        score: Mean credit over all units, or over subsets; 0 to 1.
        ci_low: Lower end of the 95 % interval.
        ci_high: Upper end.
        num_pairs: Units counted, as in `SubsetScore`.
    """

    name: str
    score: float
    ci_low: float
    ci_high: float
    num_pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkScore:
    """A model's score on a benchmark.

    Attributes:
        benchmark: Its name.
        ties: What a tie was worth.
        headline: The one figure.
        subsets: In the order of the benchmark's definition, else of the data.
        is_partial: Whether pairs of the benchmark were missing: to be said wherever it is shown.
    """

    benchmark: str
    ties: Ties
    headline: Headline
    subsets: tuple[SubsetScore, ...]
    is_partial: bool


# --- units ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Units:
    """Which pairs are counted together, in the order of their first pair.

    Attributes:
        unit_P: The place of each pair's unit.
        subset_U: Subset of each unit.
    """

    unit_P: NDArray[np.int64]
    subset_U: tuple[str, ...]


def units_of_keys(keys: Sequence[tuple[str, ...]]) -> Units:
    """The units of pairs, of which each key begins with subset and row id: one for each of both."""
    place: dict[tuple[str, ...], int] = {}
    unit_P = np.array([place.setdefault(key[:2], len(place)) for key in keys], dtype=np.int64)
    return Units(unit_P=unit_P, subset_U=tuple(subset for subset, _ in place))


@lru_cache(maxsize=8)
def units_of_pairs(pairs: BenchmarkPairs) -> Units:
    """The units of a benchmark's pairs; worked out once for all the models compared on them."""
    return units_of_keys(pairs.keys)


def unit_credits(credit_P: _Floats, *, units: Units) -> _Floats:
    """Credit of each unit, shape [U]: that of its pair, or of its choice among several.

    With credits c of the chosen response against each rejected one, the choice is worth
    1 / (1 + sum of (1 - c) / c), and 0 if any c is 0: the chance that the chosen response is taken
    when c are the chances between two (Luce's choice rule). For wins and half ties that is
    RewardBench 2's rule: 1 if it has the highest reward alone, 1/k if k share it, else 0.

    Args:
        credit_P: 0 to 1 for each pair.
        units: Of those pairs.
    """
    if len(units.subset_U) == len(credit_P):
        return credit_P  # one pair each, in its order
    with np.errstate(divide="ignore"):
        against_U = np.bincount(units.unit_P, weights=(1 - credit_P) / credit_P)
    return np.asarray(1 / (1 + against_U), dtype=np.float64)


def unit_weights(subset_U: Sequence[str], *, weighting: Weighting) -> _Floats:
    """What each unit weighs in the headline; they add up to 1.

    Args:
        subset_U: Subset of each unit.
        weighting: ``examples``: all alike. ``subsets``: all of one subset weigh as much together as
            all of another.
    """
    if weighting == "examples":
        return np.full(len(subset_U), 1 / max(len(subset_U), 1))
    _, place_U, count_S = np.unique(
        np.array(subset_U, dtype=np.str_), return_inverse=True, return_counts=True
    )
    return np.asarray(1 / (len(count_S) * count_S[place_U]), dtype=np.float64)


# --- scores ---------------------------------------------------------------------------------------


def margin_credits(margin_P: _Floats, *, ties: Ties) -> _Floats:
    """Credit of each pair: 1 if the chosen response has the higher reward, else 0 or a tie's.

    Args:
        margin_P: Reward of the chosen minus reward of the rejected response, any shape. Below
            1e-12 it is a tie: what a weighted sum leaves of margins that cancel.
        ties: What a tie is worth.

    Raises:
        InputError: A margin that is no number.
    """
    if np.isnan(margin_P).any():
        raise InputError("a margin is NaN; expected a reward for both responses of every pair")
    if ties == "half":
        return pair_credits(margin_P)
    return (margin_P > TIE_TOLERANCE).astype(np.float64)


def benchmark_score(
    credit_P: _Floats,
    *,
    pairs: BenchmarkPairs,
    ties: Ties,
    half_P: _Floats | None = None,
    credit_U: _Floats | None = None,
) -> BenchmarkScore:
    """The score of credits: every subset and the headline, with 95 % intervals.

    Args:
        credit_P: 0 to 1 for each pair, in the order of ``pairs``.
        pairs: What they are credits on.
        ties: The policy they were made with, recorded in the score.
        half_P: What they are where a tie counts in part: says which losses are ties.
        credit_U: Of each unit, where it does not follow from the pairs' (a mean over draws).

    Raises:
        InputError: A credit too many or too few, or one outside [0, 1].
    """
    if credit_P.shape != (pairs.num_pairs,) or not ((credit_P >= 0) & (credit_P <= 1)).all():
        raise InputError(f"credits: expected one in [0, 1] for each of {pairs.num_pairs} pairs")
    benchmark, units = pairs.benchmark, units_of_pairs(pairs)
    if credit_U is None:
        credit_U = unit_credits(credit_P, units=units)
        half_P = credit_P if ties == "half" else half_P
    half_U = None if half_P is None else unit_credits(half_P, units=units)
    names_U = np.array(units.subset_U, dtype=np.object_)
    ordered = [one.name for one in benchmark.subsets] or list(dict.fromkeys(names_U))
    subsets = tuple(
        _subset_score(name, credit_U[here_U], None if half_U is None else half_U[here_U])
        for name in ordered
        if (here_U := np.asarray(names_U == name)).any()
    )
    return BenchmarkScore(
        benchmark=benchmark.name,
        ties=ties,
        headline=_headline(benchmark, credit_U, subsets),
        subsets=subsets,
        is_partial=pairs.is_partial,
    )


def _subset_score(name: str, credit_S: _Floats, half_S: _Floats | None) -> SubsetScore:
    low, high = _interval(credit_S)
    return SubsetScore(
        subset=name,
        num_pairs=len(credit_S),
        num_wins=int((credit_S == 1).sum()),
        num_ties=None if half_S is None else int(((half_S > 0) & (half_S < 1)).sum()),
        num_losses=int(((credit_S if half_S is None else half_S) == 0).sum()),
        accuracy=float(credit_S.mean()),
        ci_low=low,
        ci_high=high,
    )


def _interval(credit_S: _Floats) -> tuple[float, float]:
    """The 95 % score interval of a mean credit; for credits 0 and 1 it is Wilson's.

    A credit c between them takes c (1 - c) off the variance a (1 - a): a half tie takes 1/4.
    """
    off, mean = float((credit_S * (1 - credit_S)).mean()), float(credit_S.mean())
    low, high = half_credit_interval(mean, tie_rate=4 * off, num_pairs=len(credit_S))
    return min(low, mean), max(high, mean)  # at 0 and 1 rounding may leave it outside


def _headline(benchmark: Benchmark, credit_U: _Floats, subsets: Sequence[SubsetScore]) -> Headline:
    """The mean over all units, or over subsets, with its interval.

    Of a mean of independent accuracies the distances of the ends of their intervals add up as
    squares (Newcombe's method for sums of proportions).
    """
    if benchmark.weighting == "examples":
        score = float(credit_U.mean())
        low, high = _interval(credit_U)
    else:
        score = sum(one.accuracy for one in subsets) / len(subsets)
        down = math.hypot(*(one.accuracy - one.ci_low for one in subsets)) / len(subsets)
        up = math.hypot(*(one.ci_high - one.accuracy for one in subsets)) / len(subsets)
        low, high = max(score - down, 0.0), min(score + up, 1.0)
    return Headline(
        name=benchmark.headline, score=score, ci_low=low, ci_high=high, num_pairs=len(credit_U)
    )
