"""Give a share of pairs or responses its interval, where those that share a prompt go together.

A prompt with several pairs says less than as many prompts with one pair each: its responses are
ranked once, and the pairs repeat that ranking. The sample is therefore one of prompts. Where each
prompt has one pair, the intervals are the textbook's: exact for a share, Wilson's for credits.

Suffixes: N items (pairs or responses), G groups of items that share a prompt.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, stdtrit

from encore.analysis.bootstrap import Estimate

CONFIDENCE = 0.95
#: Two-sided 95 % quantile of the normal distribution.
Z_95 = 1.959963984540054

#: With as many groups of one side, their sizes show how large such groups are. In simulated studies
#: two were enough: false verdicts in at most 5 %; with more, prompts of few responses lost power.
_ENOUGH_GROUPS = 2
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
    `exact_interval` (Korn and Graubard 1998). Where at most one group has more hits than misses,
    the upper end allows for one group of hits with as many items as the largest group; and the
    lower end for one of misses, where at most one has more misses: a rule that seldom speaks may
    win a whole prompt that was not seen. If all items are hits, or none is, groups cannot be seen
    to differ: then the interval allows for groups of the other kind, each with as many items as the
    largest group, in as many groups as the exact interval leaves possible. One group alone has no
    interval.

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
    misses_G = total_G - hits_G
    more_hits = _unseen_items(hits_G, misses_G, largest_group)
    more_misses = _unseen_items(misses_G, hits_G, largest_group)
    with_hits = _grouped_interval(
        np.append(hits_G, more_hits), np.append(total_G, more_hits), confidence
    )
    with_misses = _grouped_interval(
        np.append(hits_G, 0), np.append(total_G, more_misses), confidence
    )
    return Estimate(value=share, low=with_misses.low, high=with_hits.high)


def _unseen_items(won_G: NDArray[Any], lost_G: NDArray[Any], largest_group: int) -> int:
    """Return by how many items a group of one side may be larger than any that was seen.

    Some groups of that side show how large they are; one does not.
    """
    if np.count_nonzero(won_G > lost_G) >= _ENOUGH_GROUPS:
        return 0
    return max(largest_group - int(won_G.max()), 0)


def _grouped_interval(hits_G: NDArray[Any], total_G: NDArray[Any], confidence: float) -> Estimate:
    """Return the interval of a share between 0 and 1, without regard to groups not seen."""
    hits_G, total_G = hits_G[total_G > 0], total_G[total_G > 0].astype(np.float64)
    total = float(total_G.sum())
    share = float(hits_G.sum()) / total
    excess_G = np.asarray(hits_G - share * total_G, dtype=np.float64)
    number = min(total, effective_number(excess_G, total_G, share * (1 - share), confidence))
    return exact_interval(share * number, number, confidence=confidence)


def effective_number(
    excess_G: _Floats, size_G: _Floats, variance: float, confidence: float = CONFIDENCE
) -> float:
    """Return the number of independent items whose mean is as certain as that of these items.

    It is the number of items, divided by the design effect of the groups, and by the ratio of
    Student's t for so few groups (Korn and Graubard 1998). It may be larger than the number of
    items. The variance of the mean is that of leaving out one group after another (jackknife), and
    groups of different sizes are worth as many as sum² / sum of squares of the sizes (Kish): a
    group with most of the items draws the mean to itself, and hides how much groups differ.

    Args:
        excess_G: Sum over each group of its items' values, less the mean; at least two groups.
        size_G: Number of items in each group.
        variance: Variance of an item's value.
        confidence: Confidence of the interval that is made with the number.
    """
    num_items, quantile = float(size_G.sum()), (1 + confidence) / 2
    if not excess_G.any() or num_items < 2:
        return num_items
    of_mean = jackknife_variance(excess_G, size_G)
    freedom = degrees_of_freedom(size_G)
    ratio = float(stdtrit(num_items - 1, quantile) / stdtrit(freedom, quantile))
    return variance / (num_items - 1) / of_mean * num_items * ratio**2


def jackknife_variance(excess_G: _Floats, size_G: _Floats) -> float:
    """Return the variance of a mean over groups, by leaving out one group after another.

    Args:
        excess_G: Sum over each group of its items' values, less the mean; at least two groups.
        size_G: Number of items in each group, or the sum of their weights.
    """
    num_groups = len(size_G)
    change_G = excess_G / (size_G.sum() - size_G)
    return (num_groups - 1) / num_groups * float(change_G @ change_G)


def degrees_of_freedom(size_G: _Floats) -> float:
    """Return the degrees of freedom of a variance over groups of these sizes; at least 1/2."""
    num_equal_groups = float(size_G.sum()) ** 2 / float(size_G @ size_G)
    return max(num_equal_groups - 1, 0.5)


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
    num_items, size_G = len(credit_N), np.bincount(group_N).astype(np.float64)
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
    sizes = np.asarray(size_G[size_G > 0], dtype=np.float64)
    return min(float(num_items), effective_number(excess_G, sizes, variance))


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
