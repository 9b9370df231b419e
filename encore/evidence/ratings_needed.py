"""How many ratings are enough? Errors of ENCORE's weights in samples of pairs, and a sentence.

A sample of n out of N pairs, drawn without replacement, differs from the N by a variance
proportional to 1/n - 1/N, where from the truth it differs by 1/n; the two biases of entropy differ
by 1/n - 1/N as well. So with x = sqrt(1/n - 1/N) the error measured against all pairs is noise * x
+ bias * x², and the error against the true weights is noise / sqrt(n) + bias / n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from encore.evidence.level_codes import LevelCodes
from encore.warehouse import PairRatings
from encore.weighting.encore import entropy_weights

# Suffixes: D draws, S sample sizes, R rules, L cells of a histogram.

#: Largest error of a weight, as a share, that the sentence names a number of ratings for.
TARGET = 0.01
#: Fewer pairs than these make no curve; half of them is the largest sample.
MIN_PAIRS = 100
_NUM_DRAWS = 400
_MIN_DRAWS = 40
_MIN_SIZE = 25
#: Ratings and histogram cells that all draws together may go through: a second or two.
_WORK = 200_000_000
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
        errors: 95 % quantile of the largest error of a weight by size of sample, in pairs.
    """

    sentence: str
    error_now: float | None = None
    num_pairs_needed: int | None = None
    errors: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """Error against the truth with n pairs: noise / sqrt(n) + bias / n."""

    noise: float
    bias: float
    misfit: float
    smallest_size: int

    def error(self, num_pairs: float) -> float:
        return self.noise / math.sqrt(num_pairs) + self.bias / num_pairs

    def num_pairs(self, error: float) -> int:
        """Pairs that bring the error down to this (the root of a quadratic in 1/sqrt(n))."""
        root = self.noise + math.sqrt(self.noise**2 + 4 * self.bias * error)
        return max(math.ceil((root / (2 * error)) ** 2), self.smallest_size)


def ratings_needed(pairs: PairRatings, *, seed: int = 0, target: float = TARGET) -> RatingsNeeded:
    """How close ENCORE's weights of these pairs are to the true ones, and how many are enough.

    Every draw takes whole pairs without replacement, in random order; its first n pairs are the
    sample of size n. So samples of one size are independent draws, and those of one draw nested.

    Args:
        pairs: Each rule has at least one rating.
        seed: Of the draws.
        target: The largest error of any weight, as a share, to name a number of ratings for.
    """
    if pairs.num_pairs < MIN_PAIRS:
        return RatingsNeeded(
            sentence=f"{pairs.num_pairs} pairs are too few to learn from samples of them how sure "
            f"the weights are; at least {MIN_PAIRS} are needed",
        )
    codes = LevelCodes.of(pairs.rating_2PR)
    sizes = _sample_sizes(pairs.num_pairs)
    error_DS = _errors(codes, sizes, seed=seed)
    error_S = np.quantile(error_DS, 0.95, axis=0, method="inverted_cdf")
    known = [
        (size, error)
        for size, error in zip(sizes, error_S.tolist(), strict=True)
        if error < math.inf
    ]
    curve = _fit(known, num_pairs=pairs.num_pairs)
    problem = _problem(codes, curve, pairs.rule_ids)
    if problem or curve is None:
        return RatingsNeeded(sentence=problem, errors=tuple(known))
    needed, error_now = curve.num_pairs(target), curve.error(pairs.num_pairs)
    per_pair = float(codes.by_rule(codes.count()).mean()) / pairs.num_pairs
    if needed <= pairs.num_pairs:
        sentence = (
            f"these weights are within {_percent(target)} of the true ones after "
            f"{_about(needed * per_pair)} ratings per rule ({_about(needed)} pairs), 95 % "
            "confidence"
        )
    else:
        sentence = (
            f"{_about(pairs.num_pairs * per_pair)} ratings per rule are too few for "
            f"{_percent(target)}: these weights are within {_percent(error_now)} of the true ones, "
            f"95 % confidence; {_percent(target)} would take about {_about(needed * per_pair)} "
            "(extrapolated)"
        )
    return RatingsNeeded(
        sentence=sentence, error_now=error_now, num_pairs_needed=needed, errors=tuple(known)
    )


def _sample_sizes(num_pairs: int) -> list[int]:
    """Sizes in pairs up to half of them, each about sqrt(2) times the one before."""
    num_sizes = 1 + round(2 * math.log2(num_pairs // 2 / _MIN_SIZE))
    sizes = np.geomspace(_MIN_SIZE, num_pairs // 2, num=num_sizes).round().astype(int)
    return sorted(set(sizes.tolist()))


def _errors(codes: LevelCodes, sizes: Sequence[int], *, seed: int) -> _Floats:
    """Largest relative error of a weight in every draw and size, [D, S]; infinite where none."""
    num_pairs, width = codes.code_P2R.shape
    weight_R = entropy_weights(codes.entropies(codes.count()))
    known_R = weight_R > 0  # one that is 0 to all digits (a tiny tau) has no relative error
    work = sizes[-1] * width + len(sizes) * codes.num_cells
    num_draws = min(_NUM_DRAWS, max(_MIN_DRAWS, _WORK // work))
    rng = np.random.default_rng(seed)
    error_DS = np.full((num_draws, len(sizes)), math.inf)
    for error_S in error_DS:
        row_N = rng.choice(num_pairs, sizes[-1], replace=False)
        count_L = np.zeros(codes.num_cells, dtype=np.int64)
        for place, (start, stop) in enumerate(pairwise([0, *sizes])):
            count_L += codes.count(row_N[start:stop])
            entropy_R = codes.entropies(count_L)
            if not np.isnan(entropy_R).any():
                found_R = entropy_weights(entropy_R)
                error_S[place] = np.abs(found_R[known_R] / weight_R[known_R] - 1).max()
    return error_DS


def _fit(known: Sequence[tuple[int, float]], *, num_pairs: int) -> _Curve | None:
    """The curve through measured errors, by least squares of the deviations as shares of the error.

    It holds for samples that are not too small (a rare level must have come up): the smallest ones
    are left out until the curve fits, as long as four sizes remain.
    """
    from scipy.optimize import nnls

    best: _Curve | None = None
    for start in range(max(len(known) - _MIN_SIZES + 1, min(len(known), 1))):
        size_S, error_S = np.array(known[start:]).T
        if error_S.min() < 1e-12:  # what never changes has no error; some zeros fit no curve
            noise, bias, misfit = 0.0, 0.0, 0.0 if error_S.max() < 1e-12 else 1.0
        else:
            x_S = np.sqrt(1 / size_S - 1 / num_pairs)
            share_S2 = np.stack([x_S, x_S**2], axis=1) / error_S[:, None]
            (noise, bias), _ = nnls(share_S2, np.ones_like(x_S))
            misfit = float(np.abs(share_S2 @ [noise, bias] - 1).max())
        if best is None or misfit < best.misfit:
            best = _Curve(
                noise=float(noise), bias=float(bias), misfit=misfit, smallest_size=int(size_S[0])
            )
        if best.misfit <= _GOOD_FIT:
            break
    return best


def _problem(codes: LevelCodes, curve: _Curve | None, rule_ids: Sequence[str]) -> str:
    """Why the curve promises nothing; empty if it does.

    The share of ratings that occur once estimates the chance that the next rating is one that
    never occurred (Good and Turing). As long as it is large the entropy grows with every rating,
    and no curve knows where it ends.
    """
    count_L = codes.count()
    single_R = codes.by_rule((count_L == 1).astype(np.int64)) / codes.by_rule(count_L)
    worst = int(single_R.argmax())
    if single_R[worst] > _MAX_UNSEEN:
        return (
            f"no number of ratings can be named: {single_R[worst]:.0%} of the ratings of rule "
            f"{rule_ids[worst]} occur once only, so its entropy, and all weights with it, still "
            "grows with their number; round the ratings or rate more pairs"
        )
    if curve is None:
        return "most samples hold no rating of some rule; rate that rule on more pairs"
    if curve.misfit > _MAX_MISFIT:
        return (
            "no number of ratings can be named: the error of these weights does not fall as "
            "1/sqrt(n), so they may never settle"
        )
    return ""


def _about(number: float) -> str:
    """Two digits, as more would promise too much: 4317 is 4,300."""
    return f"{float(f'{number:.2g}'):,.0f}"


def _percent(share: float) -> str:
    """Two digits: 0.0234 is 2.3 %."""
    return f"{float(f'{100 * share:.2g}'):g} %"
