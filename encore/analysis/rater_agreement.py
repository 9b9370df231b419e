"""Measure how far raters agree: Krippendorff's alpha, Cohen's kappa, Pearson's r, win rates.

Arrays in, figures with intervals out. Intervals of alpha and kappa resample whole items, or groups
of items that share a prompt. Items that are labelled alike are one pattern, and a figure follows
from the counts of patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import TAIL, Estimate, clustered_interval, resampled_interval
from encore.analysis.correlation import fisher_interval, pearson_r
from encore.analysis.share_intervals import share_interval

# Suffixes: R raters, I items, P patterns, V values that labels have, D draws, C comparisons,
# G groups.

#: Share of comparisons in the paper's study in which the rule of lower entropy was preferred
#: (appendix "Human Preference Validation of Rule Reliability").
PAPER_WIN_RATE = 0.83

#: Levels and ratings that differ by less are equally near.
_LEVEL_DIGITS = 9

_Floats = NDArray[np.float64]


def nearest_level(rating_I: _Floats, levels: Sequence[float] | _Floats) -> _Floats:
    """Return for each rating the nearest level, the higher of two equally near ones.

    With levels 0 and 1 this cuts at one half.

    Args:
        rating_I: Ratings of I items; NaN stays NaN.
        levels: The values that labels have, ascending.
    """
    level_V = np.asarray(levels, dtype=np.float64)
    # 0.3 is as near to 0.2 as to 0.4, but for rounding.
    middle_V = ((level_V[1:] + level_V[:-1]) / 2).round(_LEVEL_DIGITS)
    level_index_I = np.searchsorted(middle_V, np.round(rating_I, _LEVEL_DIGITS), side="right")
    return np.where(np.isnan(rating_I), np.nan, level_V[level_index_I])


def _patterns(label_RI: _Floats) -> tuple[NDArray[np.intp], _Floats, _Floats, NDArray[np.int64]]:
    """Count the items that are labelled alike.

    Returns:
        The index of each rater's label among the values by pattern (the number of values if there
        is no label), shape [R, P]; the number of items of each pattern, shape [P]; the values,
        ascending, shape [V]; the pattern of each item, shape [I].
    """
    value_V, code = np.unique(label_RI, return_inverse=True)  # NaN is one value, the last
    code_RP, pattern_I, count_P = np.unique(
        code.reshape(label_RI.shape), axis=1, return_inverse=True, return_counts=True
    )
    return code_RP, count_P.astype(np.float64), value_V[~np.isnan(value_V)], pattern_I.reshape(-1)


def _interval(
    figures_of: Any,
    count_P: _Floats,
    pattern_I: NDArray[np.int64],
    group_I: NDArray[np.intp] | None,
) -> Estimate:
    """Return the figure of all items with its interval over items, or over groups of them.

    Args:
        figures_of: Computes the figure of each row of counts of patterns, from [D, P] to [D].
        count_P: Number of items of each pattern.
        pattern_I: Pattern of each item.
        group_I: Group of each item; None if items are independent.
    """
    value = float(figures_of(count_P[None])[0])
    if group_I is None or len(np.unique(group_I)) == len(group_I):
        return resampled_interval(value, figures_of, count_P)
    return clustered_interval(value, figures_of, pattern_I, group_I, num_kinds=len(count_P))


# --- alpha --------------------------------------------------------------------------------------


def alpha_interval(label_RI: _Floats, group_I: NDArray[np.intp] | None = None) -> Estimate:
    """Return Krippendorff's ordinal alpha and its interval over resampled items or groups.

    Source: Krippendorff, Computing Krippendorff's Alpha-Reliability (2011). 1 is perfect
    agreement, 0 agreement by chance. With two values it is the nominal alpha too. It is None if no
    item has two labels, or if all labels are equal.

    Args:
        label_RI: Labels, one row per rater, NaN where there is none. Items with fewer than two
            labels do not count.
        group_I: Group of each item, e.g. its prompt; None if items are independent.
    """
    is_compared_I = (~np.isnan(label_RI)).sum(axis=0) >= 2
    label_RI, group_I = label_RI[:, is_compared_I], _of_items(group_I, is_compared_I)
    code_RP, count_P, value_V, pattern_I = _patterns(np.sort(label_RI, axis=0))
    if len(value_V) < 2:
        return Estimate()
    count_PV = _label_counts(code_RP, len(value_V))
    return _interval(partial(_alphas, count_PV), count_P, pattern_I, group_I)


def _of_items(
    group_I: NDArray[np.intp] | None, is_kept_I: NDArray[np.bool_]
) -> NDArray[np.intp] | None:
    """Return the groups of the items that are kept; None without groups."""
    return None if group_I is None else group_I[is_kept_I]


def _label_counts(code_RP: NDArray[np.intp], num_values: int) -> Any:
    """Return the number of labels of each value in each pattern, a sparse array [P, V]."""
    from scipy.sparse import csr_array

    rater, pattern = np.nonzero(code_RP < num_values)
    cells = (np.ones(len(rater)), (pattern, code_RP[rater, pattern]))
    return csr_array(cells, shape=(code_RP.shape[1], num_values))


def _alphas(count_PV: Any, count_DP: _Floats) -> _Floats:
    """Return alpha for each row of counts of patterns, shape [D]; NaN if all labels are equal.

    Alpha is 1 - (n - 1) · observed / expected, for n labels. The distance of two values is the
    squared difference of their mean ranks among the n labels.
    """
    size_P = count_PV.sum(axis=1)
    count_DV = count_DP @ count_PV
    total_D = count_DV.sum(axis=1)
    rank_DV = count_DV.cumsum(axis=1) - (count_DV + total_D[:, None]) / 2
    sum_DP, square_DP = rank_DV @ count_PV.T, rank_DV**2 @ count_PV.T
    spread_DP = (size_P * square_DP - sum_DP**2) / (size_P - 1)
    observed_D = (count_DP * spread_DP).sum(axis=1)
    expected_D = total_D * (count_DV * rank_DV**2).sum(axis=1)
    return _one_minus((total_D - 1) * observed_D, expected_D)


# --- kappa --------------------------------------------------------------------------------------


def kappa_interval(
    first_I: _Floats, second_I: _Floats, group_I: NDArray[np.intp] | None = None
) -> Estimate:
    """Return Cohen's kappa over the items that both raters labelled, and its interval.

    A disagreement over k values has weight k²; with two values that is the unweighted kappa. It is
    None if a rater gives only one label: kappa would be 0 whatever the second rater answers.

    Args:
        first_I: Labels of the first rater, NaN where there is none.
        second_I: Labels of the second rater, in the same order.
        group_I: Group of each item, e.g. its prompt; None if items are independent.
    """
    label_2I = np.stack([first_I, second_I])
    is_labelled_I = np.asarray(~np.isnan(label_2I).any(axis=0))
    label_2I, group_I = label_2I[:, is_labelled_I], _of_items(group_I, is_labelled_I)
    if not (label_2I != label_2I[:, :1]).any(axis=1).all():
        return Estimate()
    code_2P, count_P, value_V, pattern_I = _patterns(label_2I)
    # Codes are counted from the middle, so that sums lose no digits.
    kappas_of = partial(_kappas, code_2P - (len(value_V) - 1) / np.float64(2))
    return _interval(kappas_of, count_P, pattern_I, group_I)


def _kappas(code_2P: _Floats, count_DP: _Floats) -> _Floats:
    """Return kappa for each row of counts of patterns, shape [D]; NaN if all labels are equal."""
    first_D, second_D = (count_DP @ code_P for code_P in code_2P)
    observed_D = count_DP @ (code_2P[0] - code_2P[1]) ** 2
    by_chance_D = count_DP @ (code_2P**2).sum(axis=0)
    by_chance_D -= 2 * first_D * second_D / count_DP.sum(axis=1)
    return _one_minus(observed_D, by_chance_D)


def _one_minus(observed_D: _Floats, expected_D: _Floats) -> _Floats:
    """Return 1 - observed / expected; NaN where no disagreement is expected."""
    expected_D = np.where(expected_D > 0, expected_D, np.nan)
    return np.asarray(1 - observed_D / expected_D, dtype=np.float64)


def pearson_interval(x_I: _Floats, y_I: _Floats) -> Estimate:
    """Return Pearson's r over the items that have both values, with its interval by Fisher's z."""
    has_both_I = ~(np.isnan(x_I) | np.isnan(y_I))
    r = pearson_r(x_I[has_both_I], y_I[has_both_I])
    if r is None:
        return Estimate()
    low, high = fisher_interval(r, num_values=int(has_both_I.sum()))
    return Estimate(value=r, low=low, high=high)


# --- win rates ----------------------------------------------------------------------------------


def win_rate_interval(is_win_C: Sequence[bool], *, group_C: Sequence[str]) -> Estimate:
    """Return a win rate and its binomial interval (Clopper and Pearson).

    Several annotators who compare the same pair of rules are not independent. So the sample is one
    of groups (the pairs), and the number of comparisons is divided by their design effect (Korn and
    Graubard 1998). The interval is exact if every group has one comparison. Annotators are fixed,
    not a sample of all annotators.

    Args:
        is_win_C: True for each comparison that was won; at least one comparison.
        group_C: Name of each comparison's group.
    """
    group_index_C = np.unique(np.asarray(group_C), return_inverse=True)[1]
    size_G = np.bincount(group_index_C)
    won_G = np.bincount(group_index_C, weights=np.asarray(is_win_C, dtype=np.float64))
    if len(size_G) == 1:  # one group does not show how groups differ
        return Estimate(value=float(won_G[0] / size_G[0]))
    return share_interval(won_G, size_G)


def win_rate_power(num_comparisons: NDArray[np.int64] | int, *, win_rate: float) -> _Floats:
    """Return the probability that independent comparisons show that a win rate is not one half.

    The test is the exact two-sided binomial test at 5 %.

    Args:
        num_comparisons: Number of comparisons, or an array of numbers.
        win_rate: The true win rate, 0 to 1.
    """
    from scipy.stats import binom

    # One half is not refused for up to so many wins, nor for up to so many losses.
    limit = binom.isf(TAIL, num_comparisons, 0.5)
    below = binom.cdf(num_comparisons - limit - 1, num_comparisons, win_rate)
    return np.asarray(binom.sf(limit, num_comparisons, win_rate) + below, dtype=np.float64)


def comparisons_needed() -> int:
    """Return the least number of comparisons that show the paper's win rate with power 0.8."""
    num_comparisons = np.arange(1, 1000)
    is_enough = win_rate_power(num_comparisons, win_rate=PAPER_WIN_RATE) >= 0.8
    return int(num_comparisons[~is_enough][-1]) + 1
