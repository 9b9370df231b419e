"""Estimate how far ENCORE's weights of a sample of pairs are from those of all pairs.

This is a delta-method interval. A rule's entropy H is estimated from its ratings; each rating x
adds -log p(x) - H to its error. All ratings of a pair are in the sample or none is, so pairs are
the sample. With temperature tau, log w changes by -(dH_r - sum_s w_s dH_s) / tau. The covariance of
these sums over pairs gives the covariance of the weights' errors. Draws from it give the largest
error of any weight. The plug-in entropy is too small by half the sum of Var(p) / p over levels
(Miller and Madow, with the variance of pairs instead of single ratings); the draws are shifted by
the effect of this bias on the weights.

Against a study of N pairs, of which n are a sample without replacement, variance and bias are
those of 1/n - 1/N; against the truth, of 1/n. So the error falls as 1/sqrt(n), and its bias faster.

The truth is that of further prompts. So against the truth all pairs of a prompt are in the sample
or none is: sums over prompts take the place of pairs. Against a study of N pairs the sample is one
of pairs, drawn by their hash, whatever their prompts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.analysis.answer_options import DEFAULT_TAU
from encore.analysis.entropy import entropy_weights
from encore.analysis.level_codes import LevelCodes, rule_entropies
from encore.analysis.pair_counts import sum_by_group
from encore.analysis.share_intervals import degrees_of_freedom
from encore.warehouse import PairRatings

# Suffixes: P pairs, G prompts, R rules, L levels, D draws.

#: With fewer pairs, or fewer ratings of a rule, no error is estimated.
MIN_PAIRS = 100
#: With fewer prompts that have several pairs, none is either.
MIN_PROMPTS = 20
CONFIDENCE = 0.95
#: `ratings_needed` names the number of ratings for this error of a weight, a share of the weight.
TARGET = 0.01
_NUM_DRAWS = 20_000
#: No error is estimated if more than this share of a rule's next ratings would be new levels.
_MAX_UNSEEN = 0.05

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightError:
    """Distance of a sample's weights from those of all pairs, or the reason that none is known.

    Attributes:
        error: Largest error of any weight, as a share of the weight, at the confidence asked for;
            None if it cannot be estimated.
        rule_id: The rule whose weight is least certain, or that prevents an estimate.
        obstacle: Reason that the error cannot be estimated, without a full stop.
    """

    error: float | None = None
    rule_id: str = ""
    obstacle: str = ""


def weight_error(
    pairs: PairRatings,
    *,
    num_all: int | None = None,
    num_tests: int = 1,
    seed: int = 0,
    tau: float = DEFAULT_TAU,
) -> WeightError:
    """Estimate the largest error of any weight, with 95 % confidence.

    Args:
        pairs: A sample of the pairs; ratings may be missing.
        num_all: Number of all pairs, the sample included, whose weights are the target. None takes
            the true weights as the target.
        num_tests: Number of estimates that are made of one growing sample. Each gets the share
            1/num_tests of the risk (Bonferroni), so that all of them hold together with 95 %
            confidence.
        seed: Seed of the draws.
        tau: Temperature of the weights.
    """
    codes = LevelCodes.from_ratings(pairs.rating_2PR)
    count_LR = codes.histogram()
    if (obstacle := _find_obstacle(pairs, count_LR)) is not None:
        return obstacle
    share = 1 / pairs.num_pairs - (0.0 if num_all is None else 1 / num_all)
    group_P = pairs.group_P if num_all is None else np.arange(pairs.num_pairs)
    num_prompts = int(group_P.max()) + 1
    if num_prompts < min(MIN_PROMPTS, pairs.num_pairs):
        return WeightError(obstacle=f"{num_prompts} prompts, at least {MIN_PROMPTS} are needed")
    covariance_RR, bias_R = _error_moments(codes, count_LR, group_P, tau=tau)
    rng = np.random.default_rng(seed)
    error_DR = rng.multivariate_normal(
        np.zeros_like(bias_R), covariance_RR * share, _NUM_DRAWS, "ignore", method="eigh"
    )
    if num_prompts < pairs.num_pairs:  # Student's t: few prompts show the covariance less well
        freedom = degrees_of_freedom(np.bincount(group_P).astype(np.float64))
        error_DR *= np.sqrt(freedom / rng.chisquare(freedom, (_NUM_DRAWS, 1)))
    error_DR += bias_R * share
    largest_D = np.abs(np.expm1(error_DR)).max(axis=1)
    return WeightError(
        error=float(np.quantile(largest_D, 1 - (1 - CONFIDENCE) / num_tests)),
        rule_id=pairs.rule_ids[int(covariance_RR.diagonal().argmax())],
    )


def _find_obstacle(pairs: PairRatings, count_LR: NDArray[np.int64]) -> WeightError | None:
    """Return the reason that no error can be estimated; None if there is none."""
    if pairs.num_pairs < MIN_PAIRS:
        return WeightError(obstacle=f"{pairs.num_pairs} pairs, at least {MIN_PAIRS} are needed")
    num_ratings_R = count_LR.sum(axis=0)
    rarest = int(num_ratings_R.argmin())
    if num_ratings_R[rarest] < MIN_PAIRS:
        rule_id = pairs.rule_ids[rarest]
        obstacle = (
            f"rule {rule_id} has {num_ratings_R[rarest]} ratings, at least {MIN_PAIRS} are "
            "needed: rate it on more pairs"
        )
        return WeightError(rule_id=rule_id, obstacle=obstacle)
    # The share of ratings that occur once estimates the chance that the next rating is a new level
    # (Good and Turing). While it is large, the entropy grows with every rating.
    single_R = (count_LR == 1).sum(axis=0) / num_ratings_R
    newest = int(single_R.argmax())
    if single_R[newest] > _MAX_UNSEEN:
        rule_id = pairs.rule_ids[newest]
        obstacle = (
            f"{single_R[newest]:.0%} of the ratings of rule {rule_id} occur once only, so its "
            "entropy, and all weights with it, still grows with their number; round the ratings "
            "or rate more pairs"
        )
        return WeightError(rule_id=rule_id, obstacle=obstacle)
    return None


def _error_moments(
    codes: LevelCodes, count_LR: NDArray[np.int64], group_P: NDArray[np.intp], *, tau: float
) -> tuple[_Floats, _Floats]:
    """Return covariance [R, R] and bias [R] of the log weights, times the number of pairs."""
    num_pairs, num_rules, num_groups = len(codes.code_P2R), codes.num_rules, int(group_P.max()) + 1
    is_grouped = num_groups < num_pairs
    p_LR = count_LR / count_LR.sum(axis=0)
    per_pair_R = count_LR.sum(axis=0) / num_pairs
    entropy_R = rule_entropies(count_LR)
    with np.errstate(divide="ignore"):
        surprise_LR = np.where(count_LR > 0, -np.log(p_LR), 0.0) - entropy_R
    surprise_by_code = np.append(surprise_LR.ravel(), 0.0)  # a missing rating adds nothing
    chosen_PR, rejected_PR = codes.code_P2R[:, :num_rules], codes.code_P2R[:, num_rules:]
    surprise_PR = (surprise_by_code[chosen_PR] + surprise_by_code[rejected_PR]) / per_pair_R
    correction = num_groups / (num_groups - 1) if is_grouped else 1.0
    surprise_GR = surprise_PR
    if is_grouped:  # by leaving out one prompt after another
        surprise_GR = sum_by_group(surprise_PR, group_P)
        surprise_GR /= 1 - np.bincount(group_P)[:, None] / num_pairs
    covariance_RR = (surprise_GR.T @ surprise_GR) / num_pairs / correction
    # As if one more pair had a rating of a new level: a rule whose ratings are all equal so far may
    # give a different one later.
    unseen_R = np.log(count_LR.sum(axis=0)) / per_pair_R
    covariance_RR[np.diag_indices(num_rules)] += unseen_R**2 / num_pairs
    same_LR = LevelCodes(
        code_P2R=np.where(chosen_PR == rejected_PR, chosen_PR, codes.num_levels * num_rules),
        num_levels=codes.num_levels,
        num_rules=num_rules,
    ).histogram()
    # A pair has a level 0, 1 or 2 times. The sum of squares is the number of ratings, plus 2 for
    # each pair that has the level twice.
    variance_LR = (count_LR + 2 * same_LR) / num_pairs / per_pair_R**2 - p_LR**2
    if is_grouped:
        variance_LR = (
            correction * _level_variances(codes, p_LR, group_P) / num_pairs / per_pair_R**2
        )
    bias_of_entropy_R = -0.5 * np.divide(
        variance_LR, p_LR, out=np.zeros_like(p_LR), where=p_LR > 0
    ).sum(axis=0)
    weight_R = entropy_weights(entropy_R, tau=tau)
    to_log_weight_RR = (weight_R - np.eye(num_rules)) / tau
    return (
        to_log_weight_RR @ covariance_RR @ to_log_weight_RR.T,
        to_log_weight_RR @ bias_of_entropy_R,
    )


def _level_variances(codes: LevelCodes, p_LR: _Floats, group_P: NDArray[np.intp]) -> _Floats:
    """Return the sum over prompts of (ratings of a level - all ratings times p)², shape [L, R]."""
    num_levels, num_rules = codes.num_levels, codes.num_rules
    variance_LR = np.zeros_like(p_LR)
    for rule in range(num_rules):
        level_P2 = codes.code_P2R[:, [rule, num_rules + rule]] // num_rules
        is_rated_P2 = level_P2 < num_levels
        group_N = np.stack([group_P, group_P], axis=1)[is_rated_P2]
        size_G = np.bincount(group_N, minlength=int(group_P.max()) + 1).astype(np.float64)
        cell_N = group_N * num_levels + level_P2[is_rated_P2]
        cell_C, count_C = np.unique(cell_N, return_counts=True)
        level_C, size_C = cell_C % num_levels, size_G[cell_C // num_levels]
        squares_L = np.bincount(
            level_C, weights=count_C.astype(np.float64) ** 2, minlength=num_levels
        )
        products_L = np.bincount(level_C, weights=count_C * size_C, minlength=num_levels)
        p_L = p_LR[:, rule]
        variance_LR[:, rule] = squares_L - 2 * p_L * products_L + p_L**2 * float(size_G @ size_G)
    return variance_LR


# --- in words -------------------------------------------------------------------------------------


def ratings_needed(pairs: PairRatings, *, target: float = TARGET) -> str:
    """Return a sentence on how close these weights are to the true ones, with 95 % confidence.

    It also says how many ratings are enough for the target. It has no full stop.

    Args:
        pairs: Ratings of pairs; each rule has at least one rating.
        target: Largest error of any weight, as a share of it.
    """
    estimate = weight_error(pairs)
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
