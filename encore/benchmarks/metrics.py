"""Accuracy on a benchmark: credit for each pair, a score for each subset, the headline.

The *unit* of counting is a row of the benchmark, which has one chosen response. Most rows are one
pair. The pairs of a row with several rejected responses are one choice: it is right or wrong as a
whole. In a subset of scoring ``ties`` a unit is a prompt, which is two rows (`ties_score`).

Suffixes: P pairs, U units, S units of one subset.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from encore.analysis.share_intervals import mean_credit_interval
from encore.benchmarks.benchmark_pairs import BenchmarkPairs
from encore.benchmarks.definition import Benchmark, Scoring, Ties, Weighting
from encore.benchmarks.ties_score import REFERENCE, ties_credits
from encore.core.errors import InputError
from encore.weighting.composed_ratings import TIE_TOLERANCE, pair_credits

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsetScore:
    """Score of a model on one subset.

    Attributes:
        subset: Name of the subset.
        num_pairs: Units counted: pairs, or rows if a row has several rejected responses.
        num_wins: Units with full credit.
        num_ties: Units with at least one tie and no loss. None if ties count as losses and it is
            unknown which losses are ties.
        num_losses: Units without credit that are not ties. In a mean over draws, many units are
            neither won nor lost.
        accuracy: Mean credit, 0 to 1.
        ci_low: Lower end of the 95 % interval (Wilson, with the variance of the credits).
        ci_high: Upper end of the 95 % interval.
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
        """Return the accuracy, under the name that `Headline` uses."""
        return self.accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """Overall score of a benchmark.

    Attributes:
        name: Name of the score, e.g. ``Safety`` (`Benchmark.headline`).
        score: Mean credit over all units, or mean accuracy of the subsets; 0 to 1.
        ci_low: Lower end of the 95 % interval.
        ci_high: Upper end of the 95 % interval.
        num_pairs: Units counted, as in `SubsetScore`.
    """

    name: str
    score: float
    ci_low: float
    ci_high: float
    num_pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkScore:
    """Scores of a model on a benchmark.

    Attributes:
        benchmark: Name of the benchmark.
        ties: Credit that a tie got.
        headline: Overall score with its interval.
        subsets: One score per subset, in the order of the benchmark's definition, else of the data.
        is_partial: True if pairs of the benchmark were missing or set aside. Every view of the
            score says so.
    """

    benchmark: str
    ties: Ties
    headline: Headline
    subsets: tuple[SubsetScore, ...]
    is_partial: bool


# --- units ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Units:
    """Grouping of pairs into units, in the order of each unit's first pair.

    Attributes:
        unit_P: Index of each pair's unit, 0 to U - 1.
        subset_U: Subset of each unit.
        is_mean_U: True if a unit's credit is the mean of its pairs.
        is_ties_U: True if a unit is a prompt of RewardBench 2's subset Ties.
        is_reference_P: True for pairs of such a prompt's row with one right answer.
        prompt_U: A number for the prompt of each unit. Units of one prompt belong together in
            intervals and tests.
    """

    unit_P: NDArray[np.int64]
    subset_U: tuple[str, ...]
    is_mean_U: NDArray[np.bool_]
    is_ties_U: NDArray[np.bool_]
    is_reference_P: NDArray[np.bool_]
    prompt_U: NDArray[np.intp]


def units_of_keys(
    keys: Sequence[tuple[str, ...]],
    *,
    prompt_ids: Sequence[str | None] = (),
    scoring: Mapping[str, Scoring] = MappingProxyType({}),
) -> Units:
    """Group pairs into units by the first two parts of their keys: subset and row id.

    Args:
        keys: Subset, row id and pair id of each pair.
        prompt_ids: Id of each pair's prompt. Empty: each unit has a prompt of its own.
        scoring: Scoring of subsets whose rows are not choices (`Benchmark.scoring`).
    """
    ties = {subset for subset, name in scoring.items() if name == "ties"}
    unit_by_row: dict[tuple[str, ...], int] = {}
    units, is_reference = [], []
    for subset, row_id, *_ in keys:
        row = (subset, row_id.partition(":")[2]) if subset in ties else (subset, row_id)
        units.append(unit_by_row.setdefault(row, len(unit_by_row)))
        is_reference.append(subset in ties and row_id.startswith(REFERENCE))
    subset_U = tuple(subset for subset, _ in unit_by_row)
    first_U = np.unique(units, return_index=True)[1]
    ids = [prompt_ids[first] if prompt_ids else None for first in first_U.tolist()]
    names = [f"unit {unit}" if name is None else f"prompt {name}" for unit, name in enumerate(ids)]
    return Units(
        unit_P=np.array(units, dtype=np.int64),
        subset_U=subset_U,
        is_mean_U=np.array([scoring.get(subset) == "mean" for subset in subset_U], dtype=np.bool_),
        is_ties_U=np.array([subset in ties for subset in subset_U], dtype=np.bool_),
        is_reference_P=np.array(is_reference, dtype=np.bool_),
        prompt_U=np.asarray(np.unique(names, return_inverse=True)[1]),
    )


@lru_cache(maxsize=8)
def units_of_pairs(pairs: BenchmarkPairs) -> Units:
    """Group a benchmark's pairs into units. The result is cached: all models share it."""
    return units_of_keys(pairs.keys, prompt_ids=pairs.prompt_ids, scoring=pairs.benchmark.scoring)


def unit_credits(credit_P: _Floats, *, units: Units, reward_P2: _Floats | None = None) -> _Floats:
    """Return the credit of each unit, shape [U]: of its pair, or of its choice among several.

    Let c be the credits of the chosen response against each rejected one. The choice gets
    1 / (1 + sum of (1 - c) / c), and 0 if any c is 0. If c are the probabilities of choices between
    two, this is the probability that the chosen response wins (Luce's choice rule). For wins and
    half ties it is RewardBench 2's rule: 1 if the chosen response alone has the highest reward,
    1/k if k responses share it, else 0. In subsets of another scoring, the credit is the mean of
    the pairs or `ties_credits`.

    Args:
        credit_P: Credit of each pair, 0 to 1; NaN if it was set aside, and so is its unit then.
        units: Units of the same pairs.
        reward_P2: Rewards of the pairs, chosen first. Needed for the scoring ``ties``.

    Raises:
        InputError: Rewards are needed and missing.
    """
    if len(units.subset_U) == len(credit_P):
        return credit_P  # one pair per unit, in the same order
    with np.errstate(divide="ignore"):
        odds_against_U = np.bincount(units.unit_P, weights=(1 - credit_P) / credit_P)
    credit_U = np.asarray(1 / (1 + odds_against_U), dtype=np.float64)
    if units.is_mean_U.any():
        mean_U = np.bincount(units.unit_P, weights=credit_P) / np.bincount(units.unit_P)
        credit_U = np.where(units.is_mean_U, mean_U, credit_U)
    if units.is_ties_U.any():
        if reward_P2 is None:
            raise InputError(
                f"subset {units.subset_U[int(units.is_ties_U.argmax())]}: its score needs the "
                "reward of every response; give a reward model, or a judge that rates every answer"
            )
        mask_P = units.is_ties_U[units.unit_P]
        ties_U, unit_P = np.unique(units.unit_P[mask_P], return_inverse=True)
        # A prompt of which a pair was set aside counts in none of the shares.
        is_whole_U = ~np.isnan(np.bincount(unit_P, weights=credit_P[mask_P]))
        is_whole_P = is_whole_U[unit_P]
        credit_U[ties_U] = np.nan
        if is_whole_U.any():
            credit_U[ties_U[is_whole_U]] = ties_credits(
                reward_P2[mask_P][is_whole_P],
                prompt_P=np.unique(unit_P[is_whole_P], return_inverse=True)[1],
                is_reference_P=units.is_reference_P[mask_P][is_whole_P],
            )
    return credit_U


def unit_weights(subset_U: Sequence[str], *, weighting: Weighting) -> _Floats:
    """Return the weight of each unit in the headline, shape [U]; the weights add up to 1.

    Args:
        subset_U: Subset of each unit.
        weighting: ``examples``: all units weigh the same. ``subsets``: the units of each subset
            together weigh the same.
    """
    if weighting == "examples":
        return np.full(len(subset_U), 1 / max(len(subset_U), 1))
    _, subset_index_U, count_S = np.unique(
        np.array(subset_U, dtype=np.str_), return_inverse=True, return_counts=True
    )
    return np.asarray(1 / (len(count_S) * count_S[subset_index_U]), dtype=np.float64)


def mean_credit(credit_U: _Floats, *, subset_U: Sequence[str], weighting: Weighting) -> float:
    """Return the headline score: the mean of the units' credits, without those that are NaN."""
    is_counted_U = ~np.isnan(credit_U)
    weight_U = unit_weights([*compress(subset_U, is_counted_U)], weighting=weighting)
    return float(weight_U @ credit_U[is_counted_U])


# --- scores ---------------------------------------------------------------------------------------


def margin_credits(margin_P: _Floats, *, ties: Ties) -> _Floats:
    """Return the credit of each pair: 1 if the chosen response has the higher reward.

    Args:
        margin_P: Reward of the chosen minus reward of the rejected response, any shape. A margin
            of at most 1e-12 in size is a tie: rounding leaves such a rest where margins cancel.
            NaN if the pair was set aside; its credit is NaN too.
        ties: Credit of a tie.
    """
    is_right_P = (margin_P > TIE_TOLERANCE).astype(np.float64)
    credit_P = pair_credits(margin_P) if ties == "half" else is_right_P
    return np.where(np.isnan(margin_P), np.nan, credit_P)


def benchmark_score(
    credit_P: _Floats,
    *,
    pairs: BenchmarkPairs,
    ties: Ties,
    half_P: _Floats | None = None,
    credit_U: _Floats | None = None,
    reward_P2: _Floats | None = None,
) -> BenchmarkScore:
    """Compute the scores of every subset and the headline, with 95 % intervals.

    Args:
        credit_P: Credit of each pair, 0 to 1, in the order of ``pairs``. NaN: it was set aside, and
            its unit does not count.
        pairs: Pairs of the benchmark.
        ties: Credit that a tie got in ``credit_P``. The score records it.
        half_P: Credit of each pair if ties count one half. Shows which losses are ties.
        credit_U: Credit of each unit, if it does not follow from ``credit_P`` (a mean over draws).
        reward_P2: Rewards of the pairs, for benchmarks with a subset of scoring ``ties``.

    Raises:
        InputError: The number of credits is wrong, a credit is outside [0, 1], or rewards are
            needed and missing.
    """
    is_outside_P = (credit_P < 0) | (credit_P > 1)
    is_valid = not is_outside_P.any() and not np.isnan(credit_P).all()
    if credit_P.shape != (pairs.num_pairs,) or not is_valid:
        raise InputError(f"credits: expected one in [0, 1] for each of {pairs.num_pairs} pairs")
    benchmark, units = pairs.benchmark, units_of_pairs(pairs)
    if credit_U is None:
        credit_U = unit_credits(credit_P, units=units, reward_P2=reward_P2)
        half_P = credit_P if ties == "half" else half_P
    half_U = None if half_P is None else unit_credits(half_P, units=units, reward_P2=reward_P2)
    is_counted_U = ~np.isnan(credit_U)
    credit_U = credit_U[is_counted_U]
    half_U = None if half_U is None else half_U[is_counted_U]
    names_U = np.array(units.subset_U, dtype=np.object_)[is_counted_U]
    prompt_U = units.prompt_U[is_counted_U]
    names = [subset.name for subset in benchmark.subsets] or list(dict.fromkeys(names_U))
    subsets = tuple(
        _subset_score(
            name,
            credit_U[mask_U],
            prompt_U[mask_U],
            # In a subset of another scoring, a credit between 0 and 1 is no tie.
            None if half_U is None or name in benchmark.scoring else half_U[mask_U],
        )
        for name in names
        if (mask_U := np.asarray(names_U == name)).any()
    )
    return BenchmarkScore(
        benchmark=benchmark.name,
        ties=ties,
        headline=_headline(benchmark, credit_U, names_U, prompt_U, subsets),
        subsets=subsets,
        is_partial=pairs.is_partial or not is_counted_U.all(),
    )


def _subset_score(
    name: str, credit_S: _Floats, prompt_S: NDArray[np.intp], half_S: _Floats | None
) -> SubsetScore:
    low, high = _interval(credit_S, prompt_S)
    return SubsetScore(
        subset=name,
        num_pairs=len(credit_S),
        num_wins=int((credit_S >= 1).sum()),
        num_ties=None if half_S is None else int(((half_S > 0) & (half_S < 1)).sum()),
        num_losses=int(((credit_S if half_S is None else half_S) <= 0).sum()),
        accuracy=float(credit_S.mean()),
        ci_low=low,
        ci_high=high,
    )


def _interval(credit_S: _Floats, prompt_S: NDArray[np.intp]) -> tuple[float, float]:
    """Return the 95 % score interval of a mean credit; all of [0, 1] for one prompt of many units.

    It is Wilson's if all credits are 0 or 1 and each unit has its own prompt
    (`mean_credit_interval`).
    """
    interval = mean_credit_interval(credit_S, np.unique(prompt_S, return_inverse=True)[1])
    if interval.low is None or interval.high is None:
        return 0.0, 1.0
    return interval.low, interval.high


def _headline(
    benchmark: Benchmark,
    credit_U: _Floats,
    names_U: NDArray[np.object_],
    prompt_U: NDArray[np.intp],
    subsets: Sequence[SubsetScore],
) -> Headline:
    """Return the mean over all units, or over subsets, with its interval.

    The interval of a mean over subsets adds the squared distances to the ends of the subsets'
    intervals (Newcombe's method for sums of independent proportions). Where subsets share prompts
    (RM-Bench), it is wider by as much as the error over prompts exceeds that of independent
    subsets.
    """
    if benchmark.weighting == "examples":
        score = float(credit_U.mean())
        low, high = _interval(credit_U, prompt_U)
    else:
        score = sum(subset.accuracy for subset in subsets) / len(subsets)
        widening = _widening_by_shared_prompts(credit_U, names_U, prompt_U) / len(subsets)
        down = math.hypot(*(subset.accuracy - subset.ci_low for subset in subsets)) * widening
        up = math.hypot(*(subset.ci_high - subset.accuracy for subset in subsets)) * widening
        low, high = max(score - down, 0.0), max(min(score + up, 1.0), score)
    return Headline(
        name=benchmark.headline, score=score, ci_low=low, ci_high=high, num_pairs=len(credit_U)
    )


def _widening_by_shared_prompts(
    credit_U: _Floats, names_U: NDArray[np.object_], prompt_U: NDArray[np.intp]
) -> float:
    """Return the error of a mean over subsets by prompts, as a multiple of independent subsets'.

    At least 1, and 1 if no prompt is in two subsets.
    """
    subset_U = np.unique(names_U.astype(str), return_inverse=True)[1]
    mean_S = np.bincount(subset_U, weights=credit_U) / np.bincount(subset_U)
    weight_U = unit_weights(names_U.tolist(), weighting="subsets")
    excess_U = weight_U * (credit_U - mean_S[subset_U])
    own_prompt_U = prompt_U * (int(subset_U.max()) + 1) + subset_U
    sums_of_squares = [
        float(np.square(np.bincount(group_U, weights=excess_U)).sum())
        for group_U in (prompt_U, own_prompt_U)
    ]
    together, apart = sums_of_squares
    return math.sqrt(max(1.0, together / apart)) if apart else 1.0
