"""How many ratings are enough? The error of ENCORE's weights (`weight_error`), in words.

The error falls as 1/sqrt(n), its bias even faster.
"""

from __future__ import annotations

import math

import numpy as np

from encore.warehouse import PairRatings
from encore.weighting.weight_error import weight_error

#: Largest error of a weight, as a share, that the sentence names a number of ratings for.
TARGET = 0.01


def ratings_needed(pairs: PairRatings, *, seed: int = 0, target: float = TARGET) -> str:
    """How close ENCORE's weights of these pairs are to the true ones, and how many are enough.

    A sentence without a full stop, with 95 % confidence.

    Args:
        pairs: Each rule has at least one rating.
        seed: Of the draws.
        target: The largest error of any weight, as a share, to name a number of ratings for.
    """
    found = weight_error(pairs, seed=seed)
    if found.error is None:
        return f"no number of ratings can be named: {found.obstacle}"
    error_now, num_pairs = found.error, pairs.num_pairs
    needed = max(math.ceil(num_pairs * (error_now / target) ** 2), 1)
    per_pair = 2 - float(np.isnan(pairs.rating_2PR).sum(axis=0).mean())
    if needed <= num_pairs:
        return (
            f"these weights are within {_percent(target)} of the true ones after "
            f"{_about(needed * per_pair)} ratings per rule ({_about(needed)} pairs), 95 % "
            "confidence"
        )
    return (
        f"{_about(num_pairs * per_pair)} ratings per rule are too few for {_percent(target)}: "
        f"these weights are within {_percent(error_now)} of the true ones, 95 % confidence; "
        f"{_percent(target)} would take about {_about(needed * per_pair)} (extrapolated)"
    )


def _about(number: float) -> str:
    """Two digits, as more would promise too much: 4317 is 4,300."""
    return f"{float(f'{number:.2g}'):,.0f}"


def _percent(share: float) -> str:
    """Two digits: 0.0234 is 2.3 %."""
    return f"{float(f'{100 * share:.2g}'):g} %"
