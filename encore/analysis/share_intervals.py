"""Give a share of pairs or responses its interval, where those that share a prompt go together.

A prompt with several pairs says less than as many prompts with one pair each: its responses are
ranked once, and the pairs repeat that ranking. The sample is therefore one of prompts. Where each
prompt has one pair, the intervals are the textbook's: exact for a share, Wilson's for credits.

Suffixes: N items (pairs or responses), G groups of items that share a prompt.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, stdtrit

from encore.analysis.bootstrap import Estimate

CONFIDENCE = 0.95
#: Two-sided 95 % quantile of the normal distribution.
Z_95 = 1.959963984540054

#: A variance of credits below this is rounding.
_ROUNDING = 1e-12

_Floats = NDArray[np.float64]
_Counts = NDArray[np.int64]


def exact_interval(hits: float, total: float, *, confidence: float = CONFIDENCE) -> Estimate:
    """Return a share with its exact interval (Clopper and Pearson 1934); empty for no items.

    Args:
        hits: Number of hits; a fraction for numbers that are worth as much as dependent ones.
        total: Number of items, hits or not.
        confidence: Probability, at least, that the interval contains the true share.
    """
    if not total:
        return Estimate()
    tail, misses = (1 - confidence) / 2, total - hits
    low = float(betaincinv(hits, misses + 1, tail)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, misses, 1 - tail)) if misses > 0 else 1.0
    return Estimate(value=hits / total, low=low, high=high)


def share_interval(
    hits_G: _Counts | _Floats,
    total_G: _Counts | _Floats,
    *,
    confidence: float = CONFIDENCE,
    largest_group: int = 0,
) -> Estimate:
    """Return a share of items with its interval over groups; exact if every group has one item.

    The number of items is divided by their design effect, and the interval is that of
    `exact_interval` (Korn and Graubard 1998). If all items are hits, or none is, groups cannot be
    seen to differ: then the interval allows for groups of the other kind, each with as many items
    as the largest group, in as many groups as the exact interval leaves possible. One group alone
    has no interval.

    Args:
        hits_G: Number of hits of each group.
        total_G: Number of items of each group; groups without items do not count.
        confidence: Probability that the interval contains the true share.
        largest_group: Number of items that a group can have, if none of these has as many.
    """
    has_items_G = total_G > 0
    hits_G, total_G = hits_G[has_items_G], total_G[has_items_G]
    hits, total, num_groups = float(hits_G.sum()), float(total_G.sum()), len(total_G)
    largest_group = max(largest_group, int(total_G.max(initial=0)))
    if largest_group <= 1:
        return exact_interval(hits, total, confidence=confidence)
    if num_groups < 2:
        return Estimate(value=hits / total if total else None)
    share = hits / total
    if not 0 < share < 1:
        end = exact_interval(0, num_groups, confidence=confidence).high or 0.0
        unseen = end * largest_group
        reach = unseen / (unseen + (1 - end) * total / num_groups)
        low, high = (0.0, reach) if share == 0 else (1 - reach, 1.0)
        return Estimate(value=share, low=low, high=high)
    excess_G = np.asarray(hits_G - share * total_G, dtype=np.float64)
    number = min(total, effective_number(excess_G, total, share * (1 - share), confidence))
    interval = exact_interval(share * number, number, confidence=confidence)
    return Estimate(value=share, low=interval.low, high=interval.high)


def effective_number(
    excess_G: _Floats, num_items: float, variance: float, confidence: float = CONFIDENCE
) -> float:
    """Return the number of independent items whose mean is as certain as that of these items.

    It is the number of items, divided by the design effect of the groups, and by the ratio of
    Student's t for so few groups (Korn and Graubard 1998). It may be larger than ``num_items``.

    Args:
        excess_G: Sum over each group of its items' values, less the mean; at least two groups.
        num_items: Number of items in all groups.
        variance: Variance of an item's value.
        confidence: Confidence of the interval that is made with the number.
    """
    num_groups, quantile = len(excess_G), (1 + confidence) / 2
    squares = float(excess_G @ excess_G)
    if not squares or num_items < 2:
        return num_items
    of_mean = num_groups / (num_groups - 1) * squares / num_items**2
    ratio = float(stdtrit(num_items - 1, quantile) / stdtrit(num_groups - 1, quantile))
    return variance / (num_items - 1) / of_mean * num_items * ratio**2


def mean_credit_interval(credit_N: _Floats, group_N: NDArray[np.intp] | None = None) -> Estimate:
    """Return the mean of credits from 0 to 1 with its 95 % interval; empty without credits.

    Args:
        credit_N: Credit of each item.
        group_N: Group of each item, from 0; None if items are independent.
    """
    num_items = len(credit_N)
    if not num_items:
        return Estimate()
    mean, reduction = float(credit_N.mean()), float((credit_N * (1 - credit_N)).mean())
    share = min(max(mean, 0.0), 1.0)  # the score of a benchmark may lie 0.01 outside
    number = float(num_items) if group_N is None else independent_number(credit_N, group_N)
    if number is None:
        return Estimate(value=mean)
    low, high = half_credit_interval(share, tie_rate=4 * reduction, num_pairs=number)
    return Estimate(value=mean, low=min(low, mean), high=max(high, mean))


def independent_number(credit_N: _Floats, group_N: NDArray[np.intp]) -> float | None:
    """Return the number of independent items that say as much as these, at most their number.

    If all credits are equal, groups cannot be seen to differ: each counts as one item.

    Args:
        credit_N: Credit of each item, 0 to 1.
        group_N: Group of each item, from 0.

    Returns:
        None if there is one group of several items.
    """
    num_items, size_G = len(credit_N), np.bincount(group_N)
    num_groups = int(np.count_nonzero(size_G))
    if num_groups == num_items:
        return float(num_items)
    if num_groups < 2:
        return None
    mean, variance = float(credit_N.mean()), float(credit_N.var())
    if variance < _ROUNDING:
        return float(num_groups)
    sum_G = np.bincount(group_N, weights=credit_N - mean)
    excess_G = np.asarray(sum_G[size_G > 0], dtype=np.float64)
    return min(float(num_items), effective_number(excess_G, num_items, variance))


def half_credit_interval(half: float, *, tie_rate: float, num_pairs: float) -> tuple[float, float]:
    """Return the 95 % score interval of half-credit accuracy over independent pairs.

    This is Wilson's interval with the variance of ties: a pair's credit is 0, 1/2 or 1, so its
    variance is a (1 - a) - tie_rate / 4. The interval holds all a with
    (a - half)² <= z² variance / n. So it stays within [0, 1], and it does not shrink to a point
    when every pair is right.

    Args:
        half: Accuracy with one half for a tie, 0 to 1.
        tie_rate: Share of pairs that are ties, 0 to 1.
        num_pairs: Number of pairs, n.
    """
    c = Z_95**2 / num_pairs
    root = math.sqrt(max(c * (4 * half * (1 - half) - tie_rate + c * (1 - tie_rate)), 0.0))
    low = (2 * half + c - root) / (2 * (1 + c))
    high = (2 * half + c + root) / (2 * (1 + c))
    return max(low, 0.0), min(high, 1.0)
