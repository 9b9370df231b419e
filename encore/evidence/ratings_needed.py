"""How many ratings are enough? The error of ENCORE's weights from halves of the pairs, in words.

A random half of n pairs differs from all of them by a variance of 1/(n/2) - 1/n = 1/n times that of
one pair, and all of them differ from the truth by 1/n as well; so does the bias of entropy. So the
largest error of a weight between halves and all is that between all and the truth. It falls as
1/sqrt(n).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from encore.evidence.level_codes import LevelCodes, entropies_of
from encore.warehouse import PairRatings
from encore.weighting.encore import entropy_weights

# Suffixes: D draws, R rules, L levels.

#: Largest error of a weight, as a share, that the sentence names a number of ratings for.
TARGET = 0.01
#: Halves of fewer pairs than these say too little.
MIN_PAIRS = 100
_NUM_DRAWS, _MIN_DRAWS = 400, 40
#: Ratings that all draws together may go through: a second or two.
_WORK = 200_000_000
#: Nothing is promised with a rule that gives ratings never seen before in more than this share.
_MAX_UNSEEN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingsNeeded:
    """How many ratings bring all weights within a target of the true ones, 95 % confidence.

    Attributes:
        sentence: The answer in words, without a full stop.
        error_now: Of the weights from all pairs; None, as the next, where nothing is promised.
        num_pairs_needed: Pairs that the target takes, also beyond those at hand.
    """

    sentence: str
    error_now: float | None = None
    num_pairs_needed: int | None = None


def ratings_needed(pairs: PairRatings, *, seed: int = 0, target: float = TARGET) -> RatingsNeeded:
    """How close ENCORE's weights of these pairs are to the true ones, and how many are enough.

    Args:
        pairs: Each rule has at least one rating.
        seed: Of the draws.
        target: The largest error of any weight, as a share, to name a number of ratings for.
    """
    num_pairs = pairs.num_pairs
    if num_pairs < MIN_PAIRS:
        return RatingsNeeded(
            sentence=f"{num_pairs} pairs are too few to learn from halves of them how sure the "
            f"weights are; at least {MIN_PAIRS} are needed",
        )
    codes = LevelCodes.of(pairs.rating_2PR)
    count_LR = codes.count()
    # The share of ratings that occur once estimates the chance that the next rating is one that
    # never occurred (Good and Turing). As long as it is large the entropy grows with every rating.
    single_R = (count_LR == 1).sum(axis=0) / count_LR.sum(axis=0)
    worst = int(single_R.argmax())
    if single_R[worst] > _MAX_UNSEEN:
        return RatingsNeeded(
            sentence=f"no number of ratings can be named: {single_R[worst]:.0%} of the ratings of "
            f"rule {pairs.rule_ids[worst]} occur once only, so its entropy, and all weights with "
            "it, still grows with their number; round the ratings or rate more pairs"
        )
    error_now = _error_of_halves(codes, seed=seed)
    if error_now == math.inf:
        return RatingsNeeded(
            sentence="most samples hold no rating of some rule; rate that rule on more pairs"
        )
    needed = max(math.ceil(num_pairs * (error_now / target) ** 2), 1)
    per_pair = count_LR.sum() / count_LR.shape[1] / num_pairs
    if needed <= num_pairs:
        sentence = (
            f"these weights are within {_percent(target)} of the true ones after "
            f"{_about(needed * per_pair)} ratings per rule ({_about(needed)} pairs), 95 % "
            "confidence"
        )
    else:
        sentence = (
            f"{_about(num_pairs * per_pair)} ratings per rule are too few for "
            f"{_percent(target)}: these weights are within {_percent(error_now)} of the true ones, "
            f"95 % confidence; {_percent(target)} would take about {_about(needed * per_pair)} "
            "(extrapolated)"
        )
    return RatingsNeeded(sentence=sentence, error_now=error_now, num_pairs_needed=needed)


def _error_of_halves(codes: LevelCodes, *, seed: int) -> float:
    """The 95 % quantile of the largest relative error of a weight in a random half of the pairs."""
    num_pairs, width = codes.code_P2R.shape
    weight_R = entropy_weights(entropies_of(codes.count()))
    rng = np.random.default_rng(seed)
    errors = []
    for _ in range(min(_NUM_DRAWS, max(_MIN_DRAWS, _WORK // (num_pairs * width)))):
        half = rng.choice(num_pairs, num_pairs // 2, replace=False)
        entropy_R = entropies_of(codes.count(half))
        error_R = np.abs(entropy_weights(np.nan_to_num(entropy_R)) / weight_R - 1)
        errors.append(math.inf if np.isnan(entropy_R).any() else float(error_R.max()))
    return float(np.quantile(errors, 0.95, method="inverted_cdf"))


def _about(number: float) -> str:
    """Two digits, as more would promise too much: 4317 is 4,300."""
    return f"{float(f'{number:.2g}'):,.0f}"


def _percent(share: float) -> str:
    """Two digits: 0.0234 is 2.3 %."""
    return f"{float(f'{100 * share:.2g}'):g} %"
