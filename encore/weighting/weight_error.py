"""How far ENCORE's weights of some pairs are from those of all pairs: a delta-method interval.

A rule's entropy H is estimated from its ratings; each rating x adds -log p(x) - H to its error.
Both ratings of a pair, under all rules, stand or fall together, so the pairs are the sample. With
tau as the temperature, log w changes by -(dH_r - sum_s w_s dH_s) / tau. The covariance of these
sums over pairs gives that of the weights' errors, and draws from it the largest error of any
weight. The plug-in entropy is too small by half the sum of Var(p) / p over levels (Miller and
Madow, with the variance of pairs instead of single ratings); the draws are shifted by what this
does to the weights.

Against a study of N pairs, of which n are a sample without replacement, variance and bias are
those of 1/n - 1/N; against the truth, of 1/n.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.analysis.level_codes import LevelCodes, rule_entropies
from encore.warehouse import PairRatings
from encore.weighting.scheme import DEFAULT_TAU
from encore.weighting.schemes.encore import entropy_weights

# Suffixes: P pairs, R rules, L levels, D draws.

#: Fewer pairs, or ratings of a rule, say too little.
MIN_PAIRS = 100
CONFIDENCE = 0.95
_NUM_DRAWS = 20_000
#: Nothing is promised with a rule that gives ratings never seen before in more than this share.
_MAX_UNSEEN = 0.05

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightError:
    """How far the weights of some pairs are from those of more pairs.

    Attributes:
        error: With the confidence asked for, no weight is farther off than this share of it; None
            where nothing can be promised.
        rule_id: The rule whose weight is least sure, or that stands against any promise.
        obstacle: Why nothing can be promised, without a full stop.
    """

    error: float | None = None
    rule_id: str = ""
    obstacle: str = ""


def weight_error(
    pairs: PairRatings, *, num_all: int | None = None, num_tests: int = 1, seed: int = 0
) -> WeightError:
    """The largest error of any weight, 95 % confidence.

    Args:
        pairs: A sample of the pairs, whose ratings may be missing.
        num_all: Pairs that the weights are compared over, these among them; None: the truth.
        num_tests: How often such a promise is made of one growing sample: all of them hold
            together with 95 % confidence, as each is given the share 1/num_tests of the risk
            (Bonferroni).
        seed: Of the draws.
    """
    codes = LevelCodes.from_ratings(pairs.rating_2PR)
    count_LR = codes.histogram()
    if (found := _without_promise(pairs, count_LR)) is not None:
        return found
    share = 1 / pairs.num_pairs - (0.0 if num_all is None else 1 / num_all)
    covariance_RR, bias_R = _errors_of_one_pair(codes, count_LR)
    rng = np.random.default_rng(seed)
    error_DR = rng.multivariate_normal(
        bias_R * share, covariance_RR * share, size=_NUM_DRAWS, method="eigh", check_valid="ignore"
    )
    largest_D = np.abs(np.expm1(error_DR)).max(axis=1)
    return WeightError(
        error=float(np.quantile(largest_D, 1 - (1 - CONFIDENCE) / num_tests)),
        rule_id=pairs.rule_ids[int(covariance_RR.diagonal().argmax())],
    )


def _without_promise(pairs: PairRatings, count_LR: NDArray[np.int64]) -> WeightError | None:
    """What stands against any promise; None: nothing does."""
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
    # The share of ratings that occur once estimates the chance that the next rating is one that
    # never occurred (Good and Turing). As long as it is large the entropy grows with every rating.
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


def _errors_of_one_pair(codes: LevelCodes, count_LR: NDArray[np.int64]) -> tuple[_Floats, _Floats]:
    """Covariance [R, R] and bias [R] of log weights, times the number of pairs."""
    num_pairs, num_rules = len(codes.code_P2R), codes.num_rules
    p_LR = count_LR / count_LR.sum(axis=0)
    per_pair_R = count_LR.sum(axis=0) / num_pairs
    entropy_R = rule_entropies(count_LR)
    with np.errstate(divide="ignore"):
        surprise_LR = np.where(count_LR > 0, -np.log(p_LR), 0.0) - entropy_R
    of_code = np.append(surprise_LR.ravel(), 0.0)  # a missing rating adds nothing
    chosen_PR, rejected_PR = codes.code_P2R[:, :num_rules], codes.code_P2R[:, num_rules:]
    surprise_PR = (of_code[chosen_PR] + of_code[rejected_PR]) / per_pair_R
    covariance_RR = surprise_PR.T @ surprise_PR / num_pairs
    # As if one more pair had given a rating never seen before: a rule whose ratings are all the
    # same so far may give another one.
    unseen_R = np.log(count_LR.sum(axis=0)) / per_pair_R
    covariance_RR[np.diag_indices(num_rules)] += unseen_R**2 / num_pairs
    same_LR = LevelCodes(
        code_P2R=np.where(chosen_PR == rejected_PR, chosen_PR, codes.num_levels * num_rules),
        num_levels=codes.num_levels,
        num_rules=num_rules,
    ).histogram()
    # A pair has a level 0, 1 or 2 times; the sum of squares is that of its ratings, and twice more
    # for a pair that has it twice.
    variance_LR = (count_LR + 2 * same_LR) / num_pairs / per_pair_R**2 - p_LR**2
    bias_of_entropy_R = -0.5 * np.divide(
        variance_LR, p_LR, out=np.zeros_like(p_LR), where=p_LR > 0
    ).sum(axis=0)
    weight_R = entropy_weights(entropy_R)
    to_log_weight_RR = (weight_R - np.eye(num_rules)) / DEFAULT_TAU
    return (
        to_log_weight_RR @ covariance_RR @ to_log_weight_RR.T,
        to_log_weight_RR @ bias_of_entropy_R,
    )
