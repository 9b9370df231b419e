"""Split each rule's variance into prompts, responses and the judge's noise.

A rating differs from the rule's mean because of its prompt, because of its response to this prompt,
and because the judge would answer differently a second time. Entropy mixes the three. This is the
one-way analysis of variance with the pair as the group. Where prompts have several pairs, the
squared mean is that of pairs of two different prompts, and errors and intervals are over prompts.
That people preferred one of the two responses is not used, so a different mean of chosen and
rejected responses counts as variance between responses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import TAIL, Estimate, draw_counts
from encore.analysis.pair_counts import sum_by_group
from encore.analysis.statistics import POOLED, SourceStatistics
from encore.core.errors import InputError
from encore.runs.identity import differences
from encore.warehouse import PairRatings, Ratings, read_pairs_of

# Suffixes: C kinds of prompts, by the sums over their pairs; D draws; K moments; Q parts of the
# variance; G prompts; P pairs; R rules; 2 before P or C: chosen and rejected, and before that the
# runs. "..." may be D or nothing.

MIN_PAIRS = 3
NUM_DRAWS = 400
#: With more kinds of pairs than these, Student's t gives the interval; draws would take seconds.
_MAX_DRAWN_KINDS = 300
#: A variance or a difference from 1 below this is rounding.
_ROUNDING = 1e-12

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceShares:
    """Shares of the variance of one rule's ratings in one source, from 0 to 1.

    They add up to 1 before negative estimates are set to 0. Pairs of one prompt belong together in
    the intervals; where prompts are not known, pairs count as independent.

    A share is None where the ratings do not vary, where fewer than three pairs or prompts are rated
    fully, or where the rule has too many levels to count pairs of them.

    Attributes:
        rule_id: The rule, as in the rule set.
        source: The data set, or `encore.analysis.statistics.POOLED` for all together.
        num_pairs: Pairs with both responses rated, in both runs if the run was repeated.
        variance: Variance of one rating.
        between_prompts: Share between the pairs: what the two responses of a pair have in common.
        between_responses: Share between the responses of a pair. Without a repeated run it contains
            the judge's noise.
        judge_noise: Share between two ratings of the same response; None without a repeated run.
    """

    rule_id: str
    source: str
    num_pairs: int
    variance: float | None
    between_prompts: Estimate
    between_responses: Estimate
    judge_noise: Estimate


def variance_shares(
    statistics: Sequence[SourceStatistics], ratings: Ratings, *, repeat: Ratings | None = None
) -> tuple[VarianceShares, ...]:
    """Return the variance shares of each source and rule, in the order of the statistics.

    Args:
        statistics: Statistics and counts of the sources.
        ratings: The ratings that they are of.
        repeat: Ratings of the same judge, asked the same again; None if there are none.

    Raises:
        InputError: The repeat is of another judge, or was asked in another way.
    """
    shares = []
    if repeat is not None:
        _refuse_other_run(ratings, repeat)
        pairs, rating_22PR = repeated_ratings(read_pairs_of(ratings), read_pairs_of(repeat))
    for part in statistics:
        for index, rule in enumerate(part.rules):
            if repeat is not None:
                is_of_source_P = (pairs.source_P == part.source) | (part.source == POOLED)
                rating_22P = rating_22PR[:, :, is_of_source_P, pairs.rule_ids.index(rule.rule_id)]
                is_rated_P = ~np.isnan(rating_22P).any(axis=(0, 1))
                rating_22C = rating_22P[:, :, is_rated_P]
                count_C = np.ones(rating_22C.shape[2], dtype=np.int64)
                group_C = pairs.group_P[is_of_source_P][is_rated_P]
            elif part.pairs is not None:
                rating_2P = part.pairs.rating_2PR[:, :, index]
                is_rated_P = ~np.isnan(rating_2P).any(axis=0)
                rating_22C = rating_2P[None, :, is_rated_P]
                count_C = np.ones(rating_22C.shape[2], dtype=np.int64)
                group_C = part.pairs.group_P[is_rated_P]
            else:
                group_C = None
                count_MM, level_L = part.counts.cells[index], part.counts.levels[index]
                if count_MM is None or level_L is None:
                    count_MM, level_L = np.zeros((1, 1), dtype=np.int64), np.zeros(0)
                chosen_C, rejected_C = np.nonzero(count_MM[:-1, :-1])
                count_C = count_MM[chosen_C, rejected_C]
                rating_22C = np.stack([level_L[chosen_C], level_L[rejected_C]])[None]
            shares.append(_shares(rule.rule_id, part.source, rating_22C, count_C, group_C))
    return tuple(shares)


def _refuse_other_run(ratings: Ratings, repeat: Ratings) -> None:
    """Refuse a repeat whose run differs in more than the pairs and their plan."""
    if ratings.manifest is None or repeat.manifest is None:
        return
    for name, first, second in differences(ratings.manifest.identity, repeat.manifest.identity):
        if not name.startswith(("plan.", "data_sha256")):
            raise InputError(
                f"{repeat.label}: no repeat of {ratings.label}, its {name} is {second}, not "
                f"{first}; expected ratings of the same judge, asked the same again (--compare "
                "takes any two runs)"
            )


def repeated_ratings(first: PairRatings, second: PairRatings) -> tuple[PairRatings, _Floats]:
    """Return the pairs in both runs, and their ratings by both, shape [2, 2, P, R].

    Args:
        first: Ratings of the first run.
        second: Ratings of its repeat; NaN stands for rules of the first run that it lacks.
    """
    names = [run.source_P + "\0" + run.pair_id_P for run in (first, second)]
    _, *pair_indices = np.intersect1d(*names, return_indices=True)
    first, second = first.take(pair_indices[0]), second.take(pair_indices[1])
    second_2PR = np.full(first.rating_2PR.shape, np.nan)
    for index, rule_id in enumerate(first.rule_ids):
        if rule_id in second.rule_ids:
            second_2PR[:, :, index] = second.rating_2PR[:, :, second.rule_ids.index(rule_id)]
    return first, np.stack([first.rating_2PR, second_2PR])


def _shares(
    rule_id: str,
    source: str,
    rating_22C: _Floats,
    count_C: NDArray[np.int64],
    group_C: NDArray[np.intp] | None,
) -> VarianceShares:
    """Return one rule's shares from its kinds of pairs, by one run or two, and their counts.

    If ``group_C`` has the prompts of pairs, every kind is one pair.
    """
    num_pairs, has_repeat = int(count_C.sum()), len(rating_22C) == 2
    variance = None
    prompts = responses = noise = Estimate()
    # Moments of a pair: 1, 1, mean rating, its square, mean square, mean product of the two
    # responses; with a repeat also the mean product of two ratings of one response. Of a prompt
    # they are the sums over its pairs, but for the squares of the first and the third sum.
    mean_2C = rating_22C.mean(axis=0)  # of each response
    mean_C = mean_2C.mean(axis=0)
    one_C = np.ones_like(mean_C)
    moments = [one_C, one_C, mean_C, mean_C**2]
    moments += [(rating_22C**2).mean(axis=(0, 1)), mean_2C.prod(axis=0)]
    if has_repeat:
        moments.append(rating_22C.prod(axis=0).mean(axis=0))
    moment_CK = np.stack(moments, axis=-1)
    if group_C is not None and len(np.unique(group_C)) < len(group_C):
        moment_CK, count_C = _moments_of_prompts(moment_CK, group_C)
    if count_C.sum() >= MIN_PAIRS:
        variance = float(_variance_and_parts(count_C @ moment_CK)[0])
        if variance > _ROUNDING:
            prompts, *repeat_estimates = _estimates(moment_CK, count_C)
            if has_repeat:
                responses, noise = repeat_estimates[0], _complement(repeat_estimates[1])
            else:
                responses = _complement(prompts)
    return VarianceShares(
        rule_id=rule_id,
        source=source,
        num_pairs=num_pairs,
        variance=variance,
        between_prompts=_at_least_0(prompts),
        between_responses=_at_least_0(responses),
        judge_noise=_at_least_0(noise),
    )


def _moments_of_prompts(
    moment_PK: _Floats, group_P: NDArray[np.intp]
) -> tuple[_Floats, NDArray[np.int64]]:
    """Return the moments of each kind of prompt, and how many prompts are of each kind."""
    moment_GK = sum_by_group(moment_PK, np.unique(group_P, return_inverse=True)[1])
    moment_GK[:, 1], moment_GK[:, 3] = moment_GK[:, 0] ** 2, moment_GK[:, 2] ** 2
    moment_CK, count_C = np.unique(moment_GK, axis=0, return_counts=True)
    return moment_CK, count_C.astype(np.int64)


def _variance_and_parts(total_K: _Floats) -> tuple[_Floats, _Floats]:
    """Return the variance, shape [...], and its parts, shape [..., Q].

    The parts are the covariance of two responses of a pair; with a repeat also what remains between
    two responses without noise, and the covariance of two ratings of one response. All are
    unbiased: the squared mean is that of two pairs of different prompts.

    Args:
        total_K: Sums of the moments over all prompts, shape [..., K].
    """
    num_pairs, num_squared, mean, mean_square, square, product, *repeat_product = np.moveaxis(
        total_K, -1, 0
    )
    squared_mean = (mean**2 - mean_square) / (num_pairs**2 - num_squared)
    parts = [product / num_pairs - squared_mean]
    if repeat_product:
        parts += [(repeat_product[0] - product) / num_pairs]
        parts += [repeat_product[0] / num_pairs - squared_mean]
    return square / num_pairs - squared_mean, np.stack(parts, axis=-1)


def _estimates(moment_CK: _Floats, count_C: NDArray[np.int64]) -> list[Estimate]:
    """Return each part's share of the variance with its 95 % interval.

    On Fisher's scale, atanh, a share's error is that of leaving out one prompt after another. The
    truth may be as many errors away as Student's t says, or as resampled prompts say whose
    distances are divided by their own errors (bootstrap-t): on each side the larger of the two.
    Rare ratings make errors skewed, for which t alone is too short; with a repeat, sometimes the
    bootstrap is.
    """
    from scipy.special import stdtrit

    with np.errstate(divide="ignore", invalid="ignore"):
        centre_Q, error_Q = _fisher_scale(moment_CK, count_C)
        low_Q, high_Q = np.full((2, len(centre_Q)), stdtrit(count_C.sum() - 1, 1 - TAIL))
        if len(count_C) <= _MAX_DRAWN_KINDS:
            count_DC = draw_counts(count_C, rng=np.random.default_rng(0), num_draws=NUM_DRAWS)
            centre_DQ, error_DQ = _fisher_scale(moment_CK, count_DC)
            distance_DQ = (centre_DQ - centre_Q) / error_DQ
            distance_DQ = distance_DQ[np.isfinite(distance_DQ).all(axis=1)]
            if len(distance_DQ) > NUM_DRAWS / 2:
                drawn_high_Q, drawn_low_Q = np.quantile(distance_DQ, [TAIL, 1 - TAIL], axis=0)
                low_Q, high_Q = np.maximum(low_Q, drawn_low_Q), np.maximum(high_Q, -drawn_high_Q)
        share_Q = np.tanh(centre_Q)
        low_Q, high_Q = np.tanh(centre_Q - low_Q * error_Q), np.tanh(centre_Q + high_Q * error_Q)
    return [
        Estimate(value=share, low=min(low, share), high=max(high, share))
        if math.isfinite(low + high)
        else Estimate(value=share, low=share, high=share)  # all pairs agree exactly
        for share, low, high in zip(share_Q.tolist(), low_Q.tolist(), high_Q.tolist(), strict=True)
    ]


def _fisher_scale(moment_CK: _Floats, count_C: NDArray[np.int64]) -> tuple[_Floats, _Floats]:
    """Return each share's atanh and its error by the jackknife over prompts, shape [..., Q].

    Args:
        moment_CK: Moments of each kind of prompt.
        count_C: Number of prompts of each kind, shape [..., C]; all totals are equal.
    """
    num_prompts = int(count_C.sum(axis=-1).flat[0])
    total_K = count_C @ moment_CK
    variance, part_Q = _variance_and_parts(total_K)
    share_Q = part_Q / variance[..., None]
    variance_C, part_CQ = _variance_and_parts(total_K[..., None, :] - moment_CK)
    share_CQ = part_CQ / variance_C[..., None]
    has_variance_C1 = variance_C[..., None] > _ROUNDING
    change_CQ = np.where(has_variance_C1, share_CQ - share_Q[..., None, :], 0.0)
    weight_C1 = count_C[..., None] / num_prompts
    change_CQ -= (weight_C1 * change_CQ).sum(axis=-2, keepdims=True)
    error_Q = np.sqrt((num_prompts - 1) * (weight_C1 * change_CQ**2).sum(axis=-2))
    return np.arctanh(np.clip(share_Q, -1, 1)), error_Q / (1 - share_Q**2)


def _complement(estimate: Estimate) -> Estimate:
    """Return the estimate of 1 minus a share."""
    low, value, high = (
        None if end is None else 1 - end for end in (estimate.high, estimate.value, estimate.low)
    )
    return Estimate(value=value, low=low, high=high)


def _at_least_0(estimate: Estimate) -> Estimate:
    """Return the estimate with negative figures as 0, and none above 1."""
    low, value, high = (
        None if end is None else min(max(end, 0.0), 1.0)
        for end in (estimate.low, estimate.value, estimate.high)
    )
    return Estimate(value=value, low=low, high=high)
