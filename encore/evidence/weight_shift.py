"""What rating the same responses again does to entropies and weights, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.evidence.level_codes import LevelCodes, level_codes
from encore.pair_ratings import PairRatings
from encore.weighting.encore import entropy_weights

# Suffixes: P pairs, N rows taken, R rules, D draws, 2 first and repeated.

_INTERVAL = (0.025, 0.975)

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightShift:
    """One rule's entropy (nats) and ENCORE weight by two ratings of the same responses.

    Intervals are 95 % percentile intervals over resampled pairs. A change is None where the first
    weight is 0 to all digits (a tiny tau).
    """

    entropy_first: float
    entropy_repeated: float
    entropy_difference: float
    entropy_difference_low: float | None
    entropy_difference_high: float | None
    weight_first: float
    weight_repeated: float
    weight_change: float | None
    weight_change_low: float | None
    weight_change_high: float | None


def weight_shifts(
    first: PairRatings, repeated: PairRatings, *, tau: float, seed: int, num_draws: int
) -> tuple[WeightShift | None, ...]:
    """The shift of every rule; None for a rule without ratings, which takes no weight.

    Args:
        first: Some pairs.
        repeated: The same pairs and rules, with ratings where ``first`` has them.
        tau: Temperature of the weights.
        seed: Of the resampling.
        num_draws: How many resamples of the pairs, the same ones in both.
    """
    codes = (
        level_codes(first, with_replacement=True),
        level_codes(repeated, with_replacement=True),
    )
    rated = np.flatnonzero(codes[0].num_ratings(codes[0].count_all()))
    shifts: list[WeightShift | None] = [None] * len(first.rule_ids)
    if not len(rated):
        return tuple(shifts)
    found_2R = _entropies(codes, slice(None), rated)
    rng = np.random.default_rng(seed)
    num_pairs = first.num_pairs
    draw_D2R = np.array(
        [_entropies(codes, rng.integers(0, num_pairs, num_pairs), rated) for _ in range(num_draws)]
    )
    for place, shift in zip(rated, _shifts(found_2R, draw_D2R, tau=tau), strict=True):
        shifts[place] = shift
    return tuple(shifts)


def _entropies(
    codes: tuple[LevelCodes, LevelCodes], row_N: NDArray[np.intp] | slice, rated: NDArray[np.intp]
) -> _Floats:
    """Entropies of both ratings over some pairs, shape [2, R]; NaN for a rule they do not rate."""
    return np.stack([one.entropies(one.count(row_N))[rated] for one in codes])


def _shifts(found_2R: _Floats, draw_D2R: _Floats, *, tau: float) -> Sequence[WeightShift]:
    weight_2R = np.array([entropy_weights(entropy_R, tau=tau) for entropy_R in found_2R])
    weight_D2R = np.array(
        [[entropy_weights(entropy_R, tau=tau) for entropy_R in draw_2R] for draw_2R in draw_D2R]
    )
    gap_DR = draw_D2R[:, 1] - draw_D2R[:, 0]
    change_R, change_DR = _changes(weight_2R), _changes(weight_D2R)
    return [
        _shift(found_2R[:, k], gap_DR[:, k], weight_2R[:, k], change_R[k], change_DR[:, k])
        for k in range(found_2R.shape[1])
    ]


def _changes(weight_2R: _Floats) -> _Floats:
    """Repeated weight over first weight, minus 1; NaN or infinite where that is no number."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(weight_2R[..., 1, :] / weight_2R[..., 0, :] - 1, dtype=np.float64)


def _shift(
    entropy_2: _Floats, gap_D: _Floats, weight_2: _Floats, change: float, change_D: _Floats
) -> WeightShift:
    entropy_low, entropy_high = _interval(gap_D)
    is_change = bool(np.isfinite(change))
    change_low, change_high = _interval(change_D) if is_change else (None, None)
    return WeightShift(
        entropy_first=float(entropy_2[0]),
        entropy_repeated=float(entropy_2[1]),
        entropy_difference=float(entropy_2[1] - entropy_2[0]),
        entropy_difference_low=entropy_low,
        entropy_difference_high=entropy_high,
        weight_first=float(weight_2[0]),
        weight_repeated=float(weight_2[1]),
        weight_change=float(change) if is_change else None,
        weight_change_low=change_low,
        weight_change_high=change_high,
    )


def _interval(value_D: _Floats) -> tuple[float | None, float | None]:
    """Of the draws that have a value: a draw may miss every rating of a rule."""
    known_D = value_D[np.isfinite(value_D)]
    if not len(known_D):
        return None, None
    low, high = np.quantile(known_D, _INTERVAL)
    return float(low), float(high)
