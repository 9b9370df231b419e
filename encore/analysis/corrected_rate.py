"""Estimate people's rate from a judge's ratings of all responses and people's labels of a few.

The judge alone is as wrong as it is, however many responses it rates. People alone are right on
average, and few labels leave a wide interval. Post-stratification is right on average too: the mean
label is taken among the responses that the judge gave the same level, and the levels count by how
often the judge gives them among all responses (Cochran 1977, section 5A.9). The more a level says
about the label, the narrower the interval: what the judge saves is about 1 / (1 - ρ²) times the
labels, for the share ρ² of the labels' variance that lies between levels.

Suffixes: N responses (rated by the judge), I those that people labelled, H strata: levels of the
judge, or of several judges together; G prompts, J judges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from encore.analysis.bootstrap import TAIL, Estimate
from encore.analysis.share_intervals import Z_95, half_credit_interval, mean_credit_interval

#: A stratum with fewer labels is joined with its neighbour. In simulated studies 4 to 8 covered
#: equally often; with more, a judge of many levels saved less.
MIN_LABELS = 5
#: One label, spread as all labels are, is added to each stratum for its variance: a stratum whose
#: few labels are equal has labels of the other kind that were not seen. A quarter was enough for
#: labels drawn at random; evenly drawn ones of 2 or 3 levels were then covered in 93 %.
_ADDED_LABELS = 1.0

#: Fisher's z of a correlation of 1 is infinite.
_LARGEST_R = 0.999_999
#: A variance below this is rounding.
_ROUNDING = 1e-12

_Floats = NDArray[np.float64]
_Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class StratifiedMean:
    """A mean label over all responses, estimated with the judge's levels as strata.

    Attributes:
        estimate: The mean with its 95 % interval.
        worth: Number of independent labels without a judge that would say as much; None without
            an interval.
        explained: Share of the labels' variance between strata, less what chance gives; None if it
            is not defined.
    """

    estimate: Estimate
    worth: float | None = None
    explained: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedRate:
    """People's mean label, from 0 to 1, estimated in three ways.

    Attributes:
        num_responses: Number of responses that every judge rated.
        num_labels: Number of these that people labelled.
        judge: Mean of the judge's ratings; empty for several judges. Its interval says how certain
            this mean is, and nothing about the judge's errors: it need not contain people's rate.
        people: Mean label, without the judge.
        corrected: Mean label of each level of the judge, by how often the judge gives it.
        explained: Share ρ² of the labels' variance that lies between the judge's levels.
        times: Number of evenly drawn labels by people alone that one label beside the judge was
            worth. It is below 1 where the judge makes the interval wider.
    """

    num_responses: int
    num_labels: int
    judge: Estimate
    people: Estimate
    corrected: Estimate
    explained: Estimate
    times: float | None


def corrected_rate(
    label_N: _Floats,
    rating_JN: Sequence[_Floats],
    prompt_N: _Indices,
    probability_N: _Floats | None = None,
) -> CorrectedRate:
    """Estimate people's mean label by the judge alone, by people alone, and corrected.

    Args:
        label_N: Label of each response, 0 to 1; NaN without one.
        rating_JN: Ratings of one judge or several, shape [J, N]. A response that one of them did
            not rate is left out.
        prompt_N: Number of the prompt of each response.
        probability_N: Probability with which each response was drawn to be labelled; None if all
            have the same.
    """
    is_rated_N = ~np.isnan(np.stack(rating_JN)).any(axis=0)
    label_N, prompt_N = label_N[is_rated_N], prompt_N[is_rated_N]
    rating_JN = [rating_N[is_rated_N] for rating_N in rating_JN]
    if probability_N is not None:
        probability_N = probability_N[is_rated_N]
    level_N = joint_levels(rating_JN)
    one_stratum_N = np.zeros_like(level_N)
    people = stratified_mean(label_N, one_stratum_N, prompt_N, probability_N)
    worth_if_even = stratified_mean(label_N, one_stratum_N, prompt_N).worth
    corrected = stratified_mean(label_N, level_N, prompt_N, probability_N)
    group_N = np.unique(prompt_N, return_inverse=True)[1]
    is_one = len(rating_JN) == 1
    num_labels = int((~np.isnan(label_N)).sum())
    times = None
    if corrected.worth is not None and worth_if_even is not None:
        times = corrected.worth / worth_if_even
    return CorrectedRate(
        num_responses=len(label_N),
        num_labels=num_labels,
        judge=mean_credit_interval(rating_JN[0], group_N) if is_one else Estimate(),
        people=people.estimate,
        corrected=corrected.estimate,
        explained=explained_interval(corrected.explained, label_N[~np.isnan(label_N)]),
        times=times,
    )


def explained_interval(explained: float | None, label_I: _Floats) -> Estimate:
    """Return ρ² with the 95 % interval that Fisher's z gives ρ.

    Labels that are nearly all equal say less about ρ than as many labels of which half are yes, so
    they count as 4 times their variance.

    Args:
        explained: Share of the labels' variance that lies between the judge's levels.
        label_I: The labels that it was measured on, 0 to 1.
    """
    num_labels = max(4 * float(label_I.var()) * len(label_I), 4.0) if len(label_I) > 3 else 0.0
    if explained is None or not num_labels:
        return Estimate(value=explained)
    centre = math.atanh(min(math.sqrt(explained), _LARGEST_R))
    half_width = Z_95 / math.sqrt(num_labels - 3)
    low, high = math.tanh(max(centre - half_width, 0.0)), math.tanh(centre + half_width)
    return Estimate(value=explained, low=min(low**2, explained), high=max(high**2, explained))


def forecast_times(explained: Estimate, *, num_labels: int, num_responses: int) -> Estimate:
    """Forecast how many labels by people alone each label beside the judge will be worth.

    The ratio is 1 / (1 - ρ²) for labels that are few beside the rated responses, and falls to 1
    when all of them have a label.

    Args:
        explained: Share ρ², from a first handful of labels.
        num_labels: Number of labels that people will have given.
        num_responses: Number of responses that the judge rated.
    """

    def times(share: float | None) -> float | None:
        if share is None:
            return None
        return 1 / max(1 - share * (1 - num_labels / num_responses), 1 / num_responses)

    return Estimate(
        value=times(explained.value), low=times(explained.low), high=times(explained.high)
    )


def joint_levels(rating_JN: Sequence[_Floats]) -> _Indices:
    """Return a number for the levels that judges gave to each response together, shape [N].

    Numbers rise with the mean of the judges' levels, so neighbours mean nearly the same.

    Args:
        rating_JN: Ratings of one judge or several, without missing ones, shape [J, N].
    """
    rating_NJ = np.stack(rating_JN, axis=1)
    level_HJ, level_N = np.unique(rating_NJ, axis=0, return_inverse=True)
    order_H = np.argsort(level_HJ.mean(axis=1), kind="stable")
    rank_H = np.empty(len(order_H), dtype=np.intp)
    rank_H[order_H] = np.arange(len(order_H))
    return np.asarray(rank_H[level_N.reshape(-1)])


def joined_strata(level_N: _Indices, is_labelled_N: NDArray[np.bool_]) -> _Indices:
    """Join neighbouring levels until each stratum has `MIN_LABELS` labels. Return strata from 0.

    Which levels are joined depends on how many labels they have, never on the labels.
    """
    num_labels_H = np.bincount(level_N[is_labelled_N], minlength=int(level_N.max()) + 1)
    stratum_H = np.empty(len(num_labels_H), dtype=np.intp)
    stratum, num_labels = 0, 0
    for level, num_of_level in enumerate(num_labels_H):
        if num_labels >= MIN_LABELS:
            stratum, num_labels = stratum + 1, 0
        stratum_H[level] = stratum
        num_labels += int(num_of_level)
    if num_labels < MIN_LABELS and stratum:  # the last levels have too few
        stratum_H[stratum_H == stratum] = stratum - 1
    return np.asarray(stratum_H[level_N])


def stratified_mean(
    label_N: _Floats, level_N: _Indices, prompt_N: _Indices, probability_N: _Floats | None = None
) -> StratifiedMean:
    """Estimate the mean label over all responses, with the judge's levels as strata.

    The interval is a score interval of as many independent labels as say the same: the variance
    within strata by their labels, times the design effect of prompts, and the variance between
    strata by all responses. It is about all responses of this kind, not these N alone.

    Args:
        label_N: Label of each response, 0 to 1; NaN without one.
        level_N: Level of the judge, from 0; neighbours are joined if they have too few labels.
        prompt_N: Number of the prompt of each response.
        probability_N: Probability with which each response was drawn to be labelled; None if all
            have the same.
    """
    is_labelled_N = ~np.isnan(label_N)
    if not is_labelled_N.any():
        return StratifiedMean(estimate=Estimate())
    stratum_N = joined_strata(level_N, is_labelled_N)
    label_I, stratum_I = label_N[is_labelled_N], stratum_N[is_labelled_N]
    inverse_I = np.ones(len(label_I))
    if probability_N is not None:
        inverse_I = 1 / probability_N[is_labelled_N]
    num_strata = int(stratum_N.max()) + 1

    def sums(value_I: _Floats) -> _Floats:
        total_H = np.bincount(stratum_I, weights=value_I, minlength=num_strata)
        return np.asarray(total_H, dtype=np.float64)

    share_H = np.bincount(stratum_N, minlength=num_strata) / len(stratum_N)
    inverse_H = sums(inverse_I)
    number_H = inverse_H**2 / sums(inverse_I**2)  # independent labels of a stratum (Kish)
    mean_H = sums(inverse_I * label_I) / inverse_H
    square_H = sums(inverse_I * label_I**2) / inverse_H
    value = float(share_H @ mean_H)
    if len(np.unique(prompt_N[is_labelled_N])) < 2:
        return StratifiedMean(estimate=Estimate(value=value))
    within_H, total = _smoothed_variances(mean_H, square_H, number_H, share_H)
    influence_I = (share_H / inverse_H)[stratum_I] * inverse_I * (label_I - mean_H[stratum_I])
    design_effect = _design_effect(influence_I, prompt_N[is_labelled_N])
    part_H = share_H**2 * within_H / number_H * design_effect
    between = _variance_between(
        (mean_H[stratum_N] - value) / len(stratum_N), prompt_N, influence_I, is_labelled_N
    )
    spare_labels = max(float(number_H.sum()) - 1, 0.5)
    within = float(part_H.sum())
    worth = total / (within + between)
    # Welch and Satterthwaite's degrees of freedom of a variance that is a sum over strata.
    freedom = within**2 / float((part_H**2 / np.maximum(number_H - 1, 0.5)).sum())
    freedom = min(max(freedom, 1.0), spare_labels)
    ratio = float(stdtrit(spare_labels, 1 - TAIL) / stdtrit(freedom, 1 - TAIL))
    reduction = float(share_H @ (mean_H - square_H))
    low, high = half_credit_interval(value, tie_rate=4 * reduction, num_pairs=worth * ratio**2)
    return StratifiedMean(
        estimate=Estimate(value=value, low=min(low, value), high=max(high, value)),
        worth=worth,
        explained=_explained(label_I, inverse_I, stratum_I, mean_H),
    )


def _smoothed_variances(
    mean_H: _Floats, square_H: _Floats, number_H: _Floats, share_H: _Floats
) -> tuple[_Floats, float]:
    """Return the variance of labels within each stratum and in all, with labels added to each."""
    num_labels = number_H.sum()
    pooled_mean = (share_H @ mean_H * num_labels + 1) / (num_labels + 2)
    pooled_square = (share_H @ square_H * num_labels + 1) / (num_labels + 2)
    if len(mean_H) == 1:  # the score interval itself allows for labels that were not seen
        return np.array([pooled_square - pooled_mean**2]), float(pooled_square - pooled_mean**2)
    added = _ADDED_LABELS
    smooth_mean_H = (number_H * mean_H + added * pooled_mean) / (number_H + added)
    smooth_square_H = (number_H * square_H + added * pooled_square) / (number_H + added)
    unbiased_H = (square_H - mean_H**2) * number_H / np.maximum(number_H - 1, 1)
    within_H = np.maximum(smooth_square_H - smooth_mean_H**2, unbiased_H)
    total = float(share_H @ smooth_square_H - (share_H @ smooth_mean_H) ** 2)
    return within_H, total


def _design_effect(influence_I: _Floats, prompt_I: _Indices) -> float:
    """Return by how much the labels' variance grows because labels of one prompt are alike."""
    group_I = np.unique(prompt_I, return_inverse=True)[1]
    num_groups, num_labels = int(group_I.max()) + 1, len(prompt_I)
    independent = float(influence_I @ influence_I)
    if num_groups == num_labels:
        return 1.0
    if independent < _ROUNDING**2:
        return num_labels / num_groups
    grouped = float((np.bincount(group_I, weights=influence_I) ** 2).sum())
    return max(grouped * num_groups / (num_groups - 1) / independent, 1.0)


def _variance_between(
    between_N: _Floats, prompt_N: _Indices, influence_I: _Floats, is_labelled_N: NDArray[np.bool_]
) -> float:
    """Return the variance between strata over prompts, with its covariance with the labels'.

    Labels above their stratum's mean go with responses of the same prompt in higher strata. Few
    labels have few such responses; where all responses have labels, it is most of the variance.
    """
    group_N = np.unique(prompt_N, return_inverse=True)[1]
    between_G = np.bincount(group_N, weights=between_N)
    influence_G = np.bincount(group_N[is_labelled_N], weights=influence_I, minlength=len(between_G))
    return float(between_G @ between_G) + max(2 * float(between_G @ influence_G), 0.0)


def _explained(
    label_I: _Floats, inverse_I: _Floats, stratum_I: _Indices, mean_H: _Floats
) -> float | None:
    """Return the variance between strata as a share, less what chance gives (epsilon squared)."""
    mean = np.average(label_I, weights=inverse_I)
    total = float(np.average((label_I - mean) ** 2, weights=inverse_I))
    within = float(np.average((label_I - mean_H[stratum_I]) ** 2, weights=inverse_I))
    spare = len(label_I) - len(mean_H)
    if total < _ROUNDING or spare < 1:
        return None
    return max(1 - within / total * (len(label_I) - 1) / spare, 0.0)
