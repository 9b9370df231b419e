"""Agreement between raters of rules: the mean of Pearson's r over pairs of raters.

Suffixes: A and B raters of two groups, R rules, P pairs of raters, 2 raters of a pair, D draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import Estimate, resampled_interval
from encore.analysis.correlation import MIN_RULES

#: A smaller variance is rounding error of a rater who gives one answer only.
_MIN_VARIANCE = 1e-12

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaterAgreement:
    """Agreement between raters.

    Attributes:
        r: Mean of Pearson's r over pairs of raters.
        num_pairs: Number of pairs that have an r. A pair has none if it has fewer than 3 rules in
            common, or if one of its raters gives one answer only.
    """

    r: Estimate
    num_pairs: int


def rater_agreement(rating_AR: _Floats, rating_BR: _Floats | None = None) -> RaterAgreement:
    """Compute the mean correlation over pairs of raters, within one group or between two.

    The interval resamples rules, not raters: it holds for these raters on similar rules.

    Args:
        rating_AR: Ratings of the first group, shape [A, R]; NaN where a rating is missing.
        rating_BR: Ratings of the second group for the same rules, shape [B, R]. None compares the
            raters of the first group with each other.
    """
    pairs = [*(combinations(rating_AR, 2) if rating_BR is None else product(rating_AR, rating_BR))]
    rating_P2R = np.array(pairs).reshape(len(pairs), 2, rating_AR.shape[-1])
    is_shared_PR = np.isfinite(rating_P2R).all(axis=1)
    x_PR, y_PR = np.where(is_shared_PR, rating_P2R.swapaxes(0, 1), 0)
    products = (x_PR, y_PR, x_PR * x_PR, y_PR * y_PR, x_PR * y_PR)

    def mean_r(times_DR: _Floats) -> tuple[_Floats, NDArray[np.int64]]:
        """Return the mean r (NaN without a pair) and the number of pairs of each draw."""
        num_DP = times_DR @ is_shared_PR.T
        with np.errstate(divide="ignore", invalid="ignore"):
            x_DP, y_DP, xx_DP, yy_DP, xy_DP = (
                times_DR @ values_PR.T / num_DP for values_PR in products
            )
            variances = np.stack([xx_DP - x_DP**2, yy_DP - y_DP**2])
            r_DP = (xy_DP - x_DP * y_DP) / np.sqrt(variances.prod(axis=0))
            has_r_DP = (variances.min(axis=0) > _MIN_VARIANCE) & (num_DP >= MIN_RULES)
            has_r_DP &= is_shared_PR.sum(axis=1) >= MIN_RULES
            num_D = has_r_DP.sum(axis=1)
            return np.where(has_r_DP, np.clip(r_DP, -1.0, 1.0), 0).sum(axis=1) / num_D, num_D

    times_R = np.ones(rating_AR.shape[-1])
    [value], [num_pairs] = mean_r(times_R[None])
    if not num_pairs:
        return RaterAgreement(r=Estimate(), num_pairs=0)
    r = resampled_interval(float(value), lambda times_DR: mean_r(times_DR)[0], times_R)
    return RaterAgreement(r=r, num_pairs=int(num_pairs))
