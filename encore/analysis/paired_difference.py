"""Compare two figures on the same pairs: the interval of their mean difference, and a sign test.

Suffixes: N pairs (or other units), G groups of pairs that share a prompt, D draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import TAIL, Estimate
from encore.analysis.share_intervals import degrees_of_freedom, jackknife_variance

_NUM_DRAWS = 10_000
#: Sums of differences that are nearer than this are equal, but for rounding.
_ROUNDING = 1e-9

_Floats = NDArray[np.float64]


def mean_difference_interval(
    delta_N: _Floats,
    *,
    weight_N: _Floats | None = None,
    subset_N: Sequence[str] | None = None,
    group_N: NDArray[np.intp] | None = None,
    tail: float = TAIL,
) -> Estimate:
    """Return the mean of differences between -1 and 1 with its interval; empty without any.

    Two more pairs are imagined, one with the difference 1 and one with -1 (Bonett and Price 2012):
    so the interval also covers where few pairs differ, and where none does it is no point. Its
    centre and variance are those of all pairs with these two. For one group of pairs of equal
    weight it is exactly theirs.

    With weights the two have the largest weight of a pair. A benchmark fixes the sizes of its
    subsets, so a pair's distance is from the mean of its subset. Where prompts have several pairs,
    the sums over prompts take the place of pairs, with Student's t.

    Args:
        delta_N: Difference of each pair.
        weight_N: Weight of each pair, with sum 1; None for equal weights.
        subset_N: Subset of each pair; None for one subset.
        group_N: Group of each pair, from 0; None if pairs are independent.
        tail: Probability beyond each end of the interval; by default it is a 95 % interval.
    """
    from scipy.special import ndtri, stdtrit

    num_pairs = len(delta_N)
    if not num_pairs:
        return Estimate()
    weight_N = np.full(num_pairs, 1 / num_pairs) if weight_N is None else weight_N
    difference = float(weight_N @ delta_N)
    group_N = (
        np.arange(num_pairs) if group_N is None else np.unique(group_N, return_inverse=True)[1]
    )
    num_groups = int(group_N.max()) + 1
    is_grouped = num_groups < num_pairs
    if is_grouped and num_groups < 2:
        return Estimate(value=difference)
    largest = float(np.bincount(group_N, weights=weight_N).max())
    total = 1 + 2 * largest
    centre = difference / total
    names = [""] * num_pairs if subset_N is None else list(subset_N)
    subset_index_N = np.unique(names, return_inverse=True)[1]
    weight_S = np.bincount(subset_index_N, weights=weight_N)
    mean_S = np.bincount(subset_index_N, weights=weight_N * delta_N) / weight_S / total
    excess_N = weight_N * (delta_N - mean_S[subset_index_N])
    excess_G = np.bincount(group_N, weights=excess_N).astype(np.float64)
    imagined = ((1 - centre) ** 2 + (1 + centre) ** 2) * largest**2
    if is_grouped:
        weight_G = np.bincount(group_N, weights=weight_N).astype(np.float64)
        variance = jackknife_variance(excess_G, weight_G) + imagined
        quantile = float(stdtrit(degrees_of_freedom(weight_G), 1 - tail))
    else:
        variance, quantile = float(excess_G @ excess_G) + imagined, float(ndtri(1 - tail))
    reach = quantile * math.sqrt(variance) / total
    return Estimate(
        value=difference,
        low=max(min(centre - reach, difference), -1.0),
        high=min(max(centre + reach, difference), 1.0),
    )


def sign_test_p(
    delta_N: _Floats, group_N: NDArray[np.intp] | None = None, *, seed: int = 0
) -> float:
    """Return the two-sided p-value that differences are as often for as against.

    Each pair that differs is a fair coin (McNemar's exact test). Where prompts have several pairs,
    each prompt is: the sign of all its pairs together. 10,000 draws then give the p-value, unless
    no prompt has more than one pair that differs.

    Args:
        delta_N: Difference of each pair: -1, 0 or 1.
        group_N: Group of each pair, from 0; None if pairs are independent.
        seed: Seed of the draws.
    """
    from scipy.stats import binomtest

    sum_G = delta_N if group_N is None else np.bincount(group_N, weights=delta_N)
    sum_G = sum_G[np.abs(sum_G) > _ROUNDING]
    if not len(sum_G):
        return 1.0
    if (np.abs(sum_G) <= 1 + _ROUNDING).all():
        return float(binomtest(int((sum_G > 0).sum()), len(sum_G)).pvalue)
    rng, num_extreme = np.random.default_rng(seed), 0
    for _ in range(_NUM_DRAWS):
        sign_G = rng.integers(0, 2, len(sum_G)) * 2 - 1
        num_extreme += abs(float(sign_G @ sum_G)) >= abs(float(sum_G.sum())) - _ROUNDING
    return (num_extreme + 1) / (_NUM_DRAWS + 1)
