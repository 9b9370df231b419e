"""How each rule's ratings are spread over [0, 1]: the counts that a histogram shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

# Suffix: L levels.

#: With more levels than this single ones cannot be told apart any more, and bars are bins.
MAX_LEVELS = 60
_NUM_BINS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleHistogram:
    """Ratings of one rule by level, or by bin where there are too many levels.

    Attributes:
        rule_id: The rule.
        positions: Each level, or the middle of each bin; ascending.
        num_ratings: Ratings at each.
        bar_width: Of a bar, in units of rating.
        is_binned: Whether positions are middles of bins.
    """

    rule_id: str
    positions: tuple[float, ...]
    num_ratings: tuple[int, ...]
    bar_width: float
    is_binned: bool

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of the rule's ratings at each position."""
        total = sum(self.num_ratings)
        return tuple(num / total for num in self.num_ratings)


def rule_histograms(levels: pa.Table, *, rule_ids: Sequence[str]) -> tuple[RuleHistogram, ...]:
    """The histogram of each rule that has a rating, in order.

    Args:
        levels: Rows of ``rule_id``, ``rating`` and ``num_ratings``; several of the same rule and
            rating (one for each source, say) add up. Ratings that are null do not count.
        rule_ids: The rules.
    """
    found = []
    for rule_id in rule_ids:
        is_its = pc.and_(pc.equal(levels["rule_id"], rule_id), pc.is_valid(levels["rating"]))
        rows = levels.filter(is_its)
        if rows.num_rows:
            rating_L = rows["rating"].to_numpy().astype(float)
            count_L = rows["num_ratings"].to_numpy().astype(np.int64)
            found.append(_histogram(rule_id, rating_L, count_L))
    return tuple(found)


def _histogram(
    rule_id: str,
    rating_L: NDArray[np.float64],
    count_L: NDArray[np.int64],
) -> RuleHistogram:
    level_L, place_L = np.unique(rating_L, return_inverse=True)
    is_binned = len(level_L) > MAX_LEVELS
    if is_binned:
        place_L = np.minimum((rating_L * _NUM_BINS).astype(int), _NUM_BINS - 1)
        level_L = (np.arange(_NUM_BINS) + 0.5) / _NUM_BINS
    num_ratings = np.bincount(place_L, weights=count_L, minlength=len(level_L))
    return RuleHistogram(
        rule_id=rule_id,
        positions=tuple(level_L.tolist()),
        num_ratings=tuple(int(num) for num in num_ratings),
        bar_width=1 / _NUM_BINS if is_binned else _bar_width(level_L.tolist()),
        is_binned=is_binned,
    )


def _bar_width(levels: Sequence[float]) -> float:
    """Wide enough to be seen, narrow enough that neighbours do not touch."""
    gap = min(np.diff(levels), default=0.1)
    return float(min(max(0.8 * gap, 0.006), 0.08))
