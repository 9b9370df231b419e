"""How far raters of rules agree: the mean of Pearson's r over pairs of raters.

Suffixes: A and B raters, R rules, P pairs of raters, D draws.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from encore.agreement import NUM_DRAWS, Estimate, resampled_interval
from encore.analysis.correlation import MIN_RULES

#: A variance below this is rounding.
_ROUNDING = 1e-12

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaterAgreement:
    """The mean of Pearson's r over pairs of raters.

    Attributes:
        r: The mean over the pairs that have one, with its interval over resampled rules.
        num_pairs: Pairs of raters that have an r.
        num_without: Pairs that have none: fewer than 3 rules in common, or always one answer.
    """

    r: Estimate = field(default_factory=Estimate)
    num_pairs: int = 0
    num_without: int = 0


def rater_agreement(
    rating_AR: _Floats,
    other_BR: _Floats | None = None,
    *,
    seed: int = 0,
    num_draws: int = NUM_DRAWS,
) -> RaterAgreement:
    """How far each rater of one group agrees with each of another, or with the others of its own.

    Rules are resampled and raters are not: the interval says what these raters would agree on
    other rules like these.

    Args:
        rating_AR: Ratings, NaN where there is none.
        other_BR: Of the other group, over the same rules; None: within the first.
        seed: Of the resampling.
        num_draws: How many resamples.
    """
    pairs = [*(combinations(rating_AR, 2) if other_BR is None else product(rating_AR, other_BR))]
    if not pairs:
        return RaterAgreement()
    x_PR, y_PR = (np.stack(ratings) for ratings in zip(*pairs, strict=True))

    def mean_r(times_DR: _Floats) -> _Floats:
        r_DP = _pearson(x_PR, y_PR, times_DR)
        has_r_DP = np.isfinite(r_DP)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.nansum(r_DP, axis=1) / has_r_DP.sum(axis=1))

    times_R = np.ones(rating_AR.shape[1])
    num_pairs = int(np.isfinite(_pearson(x_PR, y_PR, times_R[None])).sum())
    value = float(mean_r(times_R[None])[0]) if num_pairs else None
    r = resampled_interval(value, mean_r, times_R, seed=seed, num_draws=num_draws)
    return RaterAgreement(r=r, num_pairs=num_pairs, num_without=len(pairs) - num_pairs)


def _pearson(x_PR: _Floats, y_PR: _Floats, times_DR: _Floats) -> _Floats:
    """Pearson's r of each pair where each rule counts so often, shape [D, P]; NaN: there is none.

    Of each pair only the rules count that both rated.
    """
    known_PR = np.isfinite(x_PR) & np.isfinite(y_PR)
    x_PR, y_PR = (_centred(value_PR, known_PR) for value_PR in (x_PR, y_PR))
    n_DP, sum_x_DP, sum_y_DP, square_x_DP, square_y_DP, product_DP = (
        times_DR @ value_PR.T
        for value_PR in (known_PR, x_PR, y_PR, x_PR * x_PR, y_PR * y_PR, x_PR * y_PR)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_x_DP, mean_y_DP = sum_x_DP / n_DP, sum_y_DP / n_DP
        variance_x_DP = square_x_DP / n_DP - mean_x_DP**2
        variance_y_DP = square_y_DP / n_DP - mean_y_DP**2
        covariance_DP = product_DP / n_DP - mean_x_DP * mean_y_DP
        r_DP = np.clip(covariance_DP / np.sqrt(variance_x_DP * variance_y_DP), -1.0, 1.0)
        has_r_DP = np.minimum(variance_x_DP, variance_y_DP) > _ROUNDING
    return np.where(has_r_DP & (n_DP >= MIN_RULES), r_DP, np.nan)


def _centred(value_PR: _Floats, known_PR: NDArray[np.bool_]) -> _Floats:
    """Values less their mean over what is known, 0 elsewhere: sums then lose no digits."""
    known = np.where(known_PR, value_PR, 0.0)
    mean_P1 = known.sum(axis=1, keepdims=True) / np.maximum(known_PR.sum(axis=1, keepdims=True), 1)
    return np.where(known_PR, known - mean_P1, 0.0)
