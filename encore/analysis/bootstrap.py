"""Resample items with replacement, and give a figure its 95 % interval.

An item is what is drawn as a whole: a pair with both its ratings, or a response with the labels of
all its raters. Where a figure follows from counts, a resample is drawn as counts: how often each
kind of item is in it. That costs the same for any number of items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Suffixes: D draws, C kinds of items, N items, K clusters of items.

NUM_DRAWS = 2000
#: Draws of an interval that follows from their spread, which is right to 2 % then.
NUM_SPREAD_DRAWS = 1000

#: Probability below a 95 % interval, and above it.
TAIL = 0.025
#: Differences below this are rounding.
_ROUNDING = 1e-12
#: Counts that an interval's draws hold at a time: 32 MB.
_MAX_COUNTS = 4_000_000

_Floats = NDArray[np.float64]
_Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with the ends of its 95 % interval; None where one is not defined."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


def draw_counts(
    count_C: _Floats | _Counts, *, rng: np.random.Generator, num_draws: int = NUM_DRAWS
) -> _Counts:
    """Resample all items, and return how often each kind of item is drawn, shape [D, C].

    Args:
        count_C: Number of items of each kind, whole numbers, shape [C].
        rng: Generator of the draws.
        num_draws: Number of resamples, D.
    """
    num_items = int(count_C.sum())
    return rng.multinomial(num_items, count_C / num_items, size=num_draws)


def draw_clustered_counts(
    kind_N: NDArray[np.int64],
    cluster_N: NDArray[np.int64],
    *,
    num_kinds: int,
    rng: np.random.Generator,
    num_draws: int = NUM_DRAWS,
) -> _Counts:
    """Resample whole clusters, and return how often each kind of item is drawn, shape [D, C].

    Args:
        kind_N: Kind of each item, 0 to C - 1.
        cluster_N: Cluster of each item, whole numbers, e.g. the prompt of a response.
        num_kinds: Number of kinds, C.
        rng: Generator of the draws.
        num_draws: Number of resamples, D.
    """
    cluster_N = np.unique(cluster_N, return_inverse=True)[1]
    num_clusters = int(cluster_N.max()) + 1
    times_DK = rng.multinomial(num_clusters, np.full(num_clusters, 1 / num_clusters), num_draws)
    by_kind_N = np.argsort(kind_N, kind="stable")
    kinds, first_of_kind = np.unique(kind_N[by_kind_N], return_index=True)
    count_DC = np.zeros((num_draws, num_kinds), dtype=np.int64)
    count_DC[:, kinds] = np.add.reduceat(
        times_DK[:, cluster_N[by_kind_N]], first_of_kind, axis=1, dtype=np.int64
    )
    return count_DC


def draw_rows(
    group_N: NDArray[np.intp], *, rng: np.random.Generator, num_draws: int = NUM_DRAWS
) -> Iterator[NDArray[np.int64]]:
    """Yield for each resample of groups the indices of its rows; shape [N] if groups are of one.

    Args:
        group_N: Group of each row, from 0 without gaps, e.g. the prompt of a pair.
        rng: Generator of the draws.
        num_draws: Number of resamples that are yielded.
    """
    row_N = np.argsort(group_N, kind="stable")
    size_G = np.bincount(group_N)
    num_groups, start_G = len(size_G), np.cumsum(size_G) - size_G
    for _ in range(num_draws):
        drawn_G = rng.integers(0, num_groups, num_groups)
        if num_groups == len(row_N):  # each row is a group: its number may be the row's
            yield drawn_G
            continue
        sizes = size_G[drawn_G]
        offset_N = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        yield row_N[np.repeat(start_G[drawn_G], sizes) + offset_N]


def middle_95(value_D: _Floats) -> tuple[float, float]:
    """Return the 2.5 % and the 97.5 % quantile of the draws."""
    low, high = np.quantile(value_D, [TAIL, 1 - TAIL])
    return float(low), float(high)


def resampled_interval(
    value: float, figures_of: Callable[[_Floats], _Floats], count_C: _Floats
) -> Estimate:
    """Estimate the 95 % interval of a figure between -1 and 1 from the spread of its resamples.

    The interval is symmetric on Fisher's scale, atanh, and has the width of Student's t. The plain
    interval between quantiles of draws covered only 93 % for 20 items, because it is no wider for a
    small sample. This one covered 93 to 98 % in all simulated designs, from 20 to 300 items.

    A resample without a figure (all labels equal) does not count. If all items agree, both ends are
    the value itself. If all resamples give the same value (raters who never vary), there is no
    interval.

    Args:
        value: The figure of all items.
        figures_of: Computes the figure of each row of counts, from [D, C] to [D]; NaN where it is
            not defined.
        count_C: Number of items of each kind, shape [C].
    """

    def draw(num_draws: int, rng: np.random.Generator) -> _Counts:
        return draw_counts(count_C, rng=rng, num_draws=num_draws)

    return _spread_of_draws(
        value, figures_of, draw, num_items=int(count_C.sum()), num_columns=len(count_C)
    )


def clustered_interval(
    value: float,
    figures_of: Callable[[_Floats], _Floats],
    kind_N: NDArray[np.int64],
    cluster_N: NDArray[np.int64],
    *,
    num_kinds: int,
) -> Estimate:
    """Estimate the interval of `resampled_interval` where whole clusters of items are drawn.

    Items of a cluster resemble each other, so they say less than as many independent ones. If every
    cluster has one item, the interval is the same up to the draws.

    Args:
        value: The figure of all items.
        figures_of: Computes the figure of each row of counts, from [D, C] to [D].
        kind_N: Kind of each item, 0 to C - 1.
        cluster_N: Cluster of each item, whole numbers.
        num_kinds: Number of kinds, C.
    """

    def draw(num_draws: int, rng: np.random.Generator) -> _Counts:
        return draw_clustered_counts(
            kind_N, cluster_N, num_kinds=num_kinds, rng=rng, num_draws=num_draws
        )

    return _spread_of_draws(
        value,
        figures_of,
        draw,
        num_items=len(np.unique(cluster_N)),
        num_columns=max(num_kinds, len(kind_N)),
    )


def _spread_of_draws(
    value: float,
    figures_of: Callable[[_Floats], _Floats],
    draw: Callable[[int, np.random.Generator], _Counts],
    *,
    num_items: int,
    num_columns: int,
) -> Estimate:
    """Return a figure with the interval that the spread of its resamples gives; the seed is 0."""
    from scipy.special import stdtrit

    if num_items < 2:
        return Estimate(value=value)
    if 1 - abs(value) < _ROUNDING:
        return Estimate(value=value, low=value, high=value)
    rng = np.random.default_rng(0)
    block = max(1, _MAX_COUNTS // num_columns)
    starts = range(0, NUM_SPREAD_DRAWS, block)
    sizes = [min(block, NUM_SPREAD_DRAWS - start) for start in starts]
    figure_D = np.concatenate([figures_of(draw(size, rng).astype(np.float64)) for size in sizes])
    figure_D = figure_D[np.isfinite(figure_D)]
    if not len(figure_D) or np.ptp(figure_D) < _ROUNDING:
        return Estimate(value=value)
    error = float(figure_D.std()) * math.sqrt(num_items / (num_items - 1)) / (1 - value**2)
    half_width = float(stdtrit(num_items - 1, 1 - TAIL)) * error
    centre = math.atanh(value)
    return Estimate(
        value=value, low=math.tanh(centre - half_width), high=math.tanh(centre + half_width)
    )
