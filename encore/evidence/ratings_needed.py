"""How many ratings are enough? Errors of ENCORE's weights in samples of pairs, and a sentence.

A sample of n out of N pairs, drawn without replacement, differs from the N by a variance
proportional to 1/n - 1/N, where from the truth it differs by 1/n; the two biases of entropy differ
by 1/n - 1/N as well. So with x = sqrt(1/n - 1/N) the error measured against all pairs is noise * x
+ bias * x², and the error against the true weights is noise / sqrt(n) + bias / n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from encore.evidence.level_codes import LevelCodes, entropies_of
from encore.warehouse import PairRatings
from encore.weighting.encore import entropy_weights

# Suffixes: D draws, S sample sizes, R rules, L levels, N rows taken.

#: Largest error of a weight, as a share, that the sentence names a number of ratings for.
TARGET = 0.01
#: Fewer pairs than these make no curve.
MIN_PAIRS = 100
_NUM_DRAWS = 400
#: Samples have so many pairs, up to half of all. More would take long and fit no other curve.
_MIN_SIZE, _MAX_SIZE = 25, 20_000
#: A curve that misses a measured error by more than this share promises nothing.
_MAX_MISFIT = 0.25
_GOOD_FIT = 0.15
_MIN_SIZES = 4
#: Nor does one with a rule that gives ratings never seen before in more than this share of cases.
_MAX_UNSEEN = 0.05

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingsNeeded:
    """How many ratings bring all weights within a target of the true ones, 95 % confidence.

    Attributes:
        sentence: The answer in words, without a full stop.
        error_now: What the fitted curve says of the weights from all pairs; None, as the next,
            where it promises nothing.
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
            sentence=f"{num_pairs} pairs are too few to learn from samples of them how sure the "
            f"weights are; at least {MIN_PAIRS} are needed",
        )
    codes = LevelCodes.of(pairs.rating_2PR)
    count_LR = codes.count()
    # The share of ratings that occur once estimates the chance that the next rating is one that
    # never occurred (Good and Turing). As long as it is large the entropy grows with every rating,
    # and no curve knows where it ends.
    single_R = (count_LR == 1).sum(axis=0) / count_LR.sum(axis=0)
    worst = int(single_R.argmax())
    if single_R[worst] > _MAX_UNSEEN:
        return RatingsNeeded(
            sentence=f"no number of ratings can be named: {single_R[worst]:.0%} of the ratings of "
            f"rule {pairs.rule_ids[worst]} occur once only, so its entropy, and all weights with "
            "it, still grows with their number; round the ratings or rate more pairs"
        )
    curve = _fit(*_errors(codes, seed=seed), num_pairs=num_pairs)
    if curve is None:
        return RatingsNeeded(
            sentence="no number of ratings can be named: the error of these weights does not fall "
            "as 1/sqrt(n), or most samples hold no rating of some rule; rate more pairs"
        )
    noise, bias = curve
    error_now = noise / math.sqrt(num_pairs) + bias / num_pairs
    # The root of a quadratic in 1/sqrt(n).
    root = (noise + math.sqrt(noise**2 + 4 * bias * target)) / (2 * target)
    needed = max(math.ceil(root**2), _MIN_SIZE)
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


def _errors(codes: LevelCodes, *, seed: int) -> tuple[NDArray[np.int64], _Floats]:
    """Sample sizes in pairs, shape [S], and the 95 % quantile of the largest error of a weight.

    Every draw takes whole pairs without replacement, in random order; its first n pairs are the
    sample of size n. So samples of one size are independent draws, and those of one draw nested.
    Sizes at which most samples miss a rule have no error and are left out.
    """
    num_pairs = len(codes.code_P2R)
    largest = min(num_pairs // 2, _MAX_SIZE)
    # Each about sqrt(2) times the one before.
    num_sizes = 1 + round(2 * math.log2(largest / _MIN_SIZE))
    size_S = np.geomspace(_MIN_SIZE, largest, num=num_sizes).round().astype(np.int64)
    weight_R = entropy_weights(entropies_of(codes.count()))
    rng = np.random.default_rng(seed)
    error_DS = np.full((_NUM_DRAWS, num_sizes), math.inf)
    for error_S in error_DS:
        row_N = rng.choice(num_pairs, largest, replace=False)
        count_LR = np.zeros((codes.num_levels, codes.num_rules), dtype=np.int64)
        for place, rows in enumerate(np.split(row_N, size_S[:-1])):
            count_LR += codes.count(rows)
            entropy_R = entropies_of(count_LR)
            if not np.isnan(entropy_R).any():
                error_S[place] = np.abs(entropy_weights(entropy_R) / weight_R - 1).max()
    quantile_S = np.quantile(error_DS, 0.95, axis=0, method="inverted_cdf")
    is_known_S = np.isfinite(quantile_S)
    return size_S[is_known_S], quantile_S[is_known_S]


def _fit(
    size_S: NDArray[np.int64], error_S: _Floats, *, num_pairs: int
) -> tuple[float, float] | None:
    """Noise and bias of the curve through measured errors, by least squares of relative deviations.

    It holds for samples that are not too small (a rare level must have come up): the smallest ones
    are left out until the curve fits, as long as four sizes remain. None where it never fits.
    """
    if not error_S.any():
        return (0.0, 0.0) if len(error_S) else None
    x_S = np.sqrt(1 / size_S - 1 / num_pairs)
    share_S2 = np.stack([x_S, x_S**2], axis=1) / np.maximum(error_S, 1e-12)[:, None]
    best, curve = _MAX_MISFIT, None
    for start in range(max(len(size_S) - _MIN_SIZES, 0) + 1):
        found_2, _ = nnls(share_S2[start:], np.ones(len(size_S) - start))
        misfit = np.abs(share_S2[start:] @ found_2 - 1).max()
        if misfit < best:
            best, curve = misfit, (float(found_2[0]), float(found_2[1]))
        if misfit <= _GOOD_FIT:
            break
    return curve


def _about(number: float) -> str:
    """Two digits, as more would promise too much: 4317 is 4,300."""
    return f"{float(f'{number:.2g}'):,.0f}"


def _percent(share: float) -> str:
    """Two digits: 0.0234 is 2.3 %."""
    return f"{float(f'{100 * share:.2g}'):g} %"
