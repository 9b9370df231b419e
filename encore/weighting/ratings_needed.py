"""State how many ratings are enough for ENCORE's weights, from their error (`weight_error`).

The error falls as 1/sqrt(n), its bias even faster.
"""

from __future__ import annotations

import math

import numpy as np

from encore.warehouse import PairRatings
from encore.weighting.weight_error import weight_error

#: The sentence names the number of ratings for this error of a weight, a share of the weight.
TARGET = 0.01


def ratings_needed(pairs: PairRatings, *, seed: int = 0, target: float = TARGET) -> str:
    """Return a sentence on how close these weights are to the true ones, with 95 % confidence.

    It also says how many ratings are enough for the target. It has no full stop.

    Args:
        pairs: Ratings of pairs; each rule has at least one rating.
        seed: Seed of the draws of `weight_error`.
        target: Largest error of any weight, as a share of it.
    """
    estimate = weight_error(pairs, seed=seed)
    if estimate.error is None:
        return f"no number of ratings can be named: {estimate.obstacle}"
    error_now, num_pairs = estimate.error, pairs.num_pairs
    needed = max(math.ceil(num_pairs * (error_now / target) ** 2), 1)
    per_pair = 2 - float(np.isnan(pairs.rating_2PR).sum(axis=0).mean())
    if needed <= num_pairs:
        return (
            f"these weights are within {_percent(target)} of the true ones after "
            f"{_two_digits(needed * per_pair)} ratings per rule ({_two_digits(needed)} pairs), "
            "95 % confidence"
        )
    return (
        f"{_two_digits(num_pairs * per_pair)} ratings per rule are too few for {_percent(target)}: "
        f"these weights are within {_percent(error_now)} of the true ones, 95 % confidence; "
        f"{_percent(target)} would take about {_two_digits(needed * per_pair)} (extrapolated)"
    )


def _two_digits(number: float) -> str:
    """Return a number with two digits, as more would not be true: 4317 is 4,300."""
    return f"{float(f'{number:.2g}'):,.0f}"


def _percent(share: float) -> str:
    """Return a share in percent with two digits: 0.0234 is 2.3 %."""
    return f"{float(f'{100 * share:.2g}'):g} %"
