"""How far raters of rules agree: the mean of Pearson's r over pairs of raters.

Suffixes: A and B raters, R rules, P pairs of raters, D draws.
"""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from encore.agreement import NUM_DRAWS, Estimate, resampled_interval
from encore.analysis.correlation import MIN_RULES

#: A variance below this is rounding.
_ROUNDING = 1e-12

_Floats = NDArray[np.float64]


def rater_agreement(
    rating_AR: _Floats,
    other_BR: _Floats | None = None,
    *,
    seed: int = 0,
    num_draws: int = NUM_DRAWS,
) -> tuple[Estimate, int]:
    """How far each rater of one group agrees with each of another, or with the others of its own.

    Rules are resampled and raters are not: the interval says what these raters would agree on
    other rules like these.

    Args:
        rating_AR: Ratings, NaN where there is none.
        other_BR: Of the other group, over the same rules; None: within the first.
        seed: Of the resampling.
        num_draws: How many resamples.

    Returns:
        The mean over the pairs that have an r, and how many these are. A pair with fewer than 3
        rules in common, or with a rater who always gives one answer, has none.
    """
    pairs = [*(combinations(rating_AR, 2) if other_BR is None else product(rating_AR, other_BR))]

    def mean_r(times_DR: _Floats) -> _Floats:
        r_PD = np.stack([_pearson(x_R, y_R, times_DR) for x_R, y_R in pairs])
        with np.errstate(invalid="ignore"):
            return np.asarray(np.nansum(r_PD, axis=0) / np.isfinite(r_PD).sum(axis=0))

    times_R = np.ones(rating_AR.shape[-1])
    num_pairs = sum(not np.isnan(_pearson(x_R, y_R, times_R[None]))[0] for x_R, y_R in pairs)
    if not num_pairs:
        return Estimate(), 0
    value = float(mean_r(times_R[None])[0])
    r = resampled_interval(value, mean_r, times_R, seed=seed, num_draws=num_draws)
    return r, num_pairs


def _pearson(x_R: _Floats, y_R: _Floats, times_DR: _Floats) -> _Floats:
    """Pearson's r over the rules that both rated, each as often as told; NaN: there is none."""
    is_known_R = np.isfinite(x_R) & np.isfinite(y_R)
    if is_known_R.sum() < MIN_RULES:
        return np.full(len(times_DR), np.nan)
    times_DR = times_DR[:, is_known_R]
    # Less their means: sums then lose no digits.
    x_R, y_R = (value_R[is_known_R] - value_R[is_known_R].mean() for value_R in (x_R, y_R))
    num_D = times_DR.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_x_D, mean_y_D, xx_D, yy_D, xy_D = (
            times_DR @ value_R / num_D for value_R in (x_R, y_R, x_R * x_R, y_R * y_R, x_R * y_R)
        )
        variance_x_D, variance_y_D = xx_D - mean_x_D**2, yy_D - mean_y_D**2
        r_D = (xy_D - mean_x_D * mean_y_D) / np.sqrt(variance_x_D * variance_y_D)
        has_r_D = (np.minimum(variance_x_D, variance_y_D) > _ROUNDING) & (num_D >= MIN_RULES)
    return np.where(has_r_D, np.clip(r_D, -1.0, 1.0), np.nan)
