"""How far raters of rules agree: the mean of Pearson's r over pairs of raters.

Suffixes: A and B raters, R rules, P pairs of raters, 2 raters of a pair, D draws.
"""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from encore.analysis.correlation import MIN_RULES
from encore.analysis.resampling import Estimate, resampled_interval

#: A variance below this is rounding.
_ROUNDING = 1e-12

_Floats = NDArray[np.float64]


def rater_agreement(rating_AR: _Floats, other_BR: _Floats | None = None) -> tuple[Estimate, int]:
    """How far each rater of one group agrees with each of another, or with the others of its own.

    Rules are resampled and raters are not: the interval says what these raters would agree on
    other rules like these.

    Args:
        rating_AR: Ratings, NaN where there is none.
        other_BR: Of the other group, over the same rules; None: within the first.

    Returns:
        The mean over the pairs that have an r, and how many these are. A pair with fewer than 3
        rules in common, or with a rater who always gives one answer, has none.
    """
    pairs = [*(combinations(rating_AR, 2) if other_BR is None else product(rating_AR, other_BR))]
    rating_P2R = np.array(pairs).reshape(len(pairs), 2, rating_AR.shape[-1])
    is_known_PR = np.isfinite(rating_P2R).all(axis=1)
    x_PR, y_PR = np.where(is_known_PR, rating_P2R.swapaxes(0, 1), 0)
    sums = (x_PR, y_PR, x_PR * x_PR, y_PR * y_PR, x_PR * y_PR)

    def mean_r(times_DR: _Floats) -> tuple[_Floats, NDArray[np.int64]]:
        """The mean r with each rule as often as told, NaN without any, and of how many pairs."""
        num_DP = times_DR @ is_known_PR.T
        with np.errstate(divide="ignore", invalid="ignore"):
            x_DP, y_DP, xx_DP, yy_DP, xy_DP = (times_DR @ one.T / num_DP for one in sums)
            variances = np.stack([xx_DP - x_DP**2, yy_DP - y_DP**2])
            r_DP = (xy_DP - x_DP * y_DP) / np.sqrt(variances.prod(axis=0))
            has_r_DP = (variances.min(axis=0) > _ROUNDING) & (num_DP >= MIN_RULES)
            has_r_DP &= is_known_PR.sum(axis=1) >= MIN_RULES
            num_D = has_r_DP.sum(axis=1)
            return np.where(has_r_DP, np.clip(r_DP, -1.0, 1.0), 0).sum(axis=1) / num_D, num_D

    times_R = np.ones(rating_AR.shape[-1])
    [value], [num_pairs] = mean_r(times_R[None])
    if not num_pairs:
        return Estimate(), 0
    r = resampled_interval(float(value), lambda times_DR: mean_r(times_DR)[0], times_R)
    return r, int(num_pairs)
