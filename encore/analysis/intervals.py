"""How sure each rule's entropy and accuracies are: intervals from resampling whole pairs.

The two ratings of a pair belong together, so a sample of the data is a sample of pairs. What such a
sample holds follows from counts (how many pairs have which two ratings), so nothing is read again.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from encore.analysis.pair_counts import PairCells
from encore.analysis.statistics import RuleStats, SourceStatistics, TiePolicy

# Suffixes: D draws, C cells of pairs, L levels.

NUM_DRAWS = 2000
SEED = 0
CONFIDENCE = 0.95
MIN_PAIRS = 2
#: With more cells than these, pairs are so many that the normal limit says the same as draws, which
#: would take seconds.
_MAX_DRAWN_CELLS = 1000

#: How an interval of entropy was made: from draws of pairs, from their normal limit, or from an
#: upper bound of the limit's width where a rule has too many levels to count pairs of them.
Method = Literal["bootstrap", "normal", "bound"]

_Floats = NDArray[np.float64]
_Bounds = tuple[float | None, float | None]
_NONE: _Bounds = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleInterval:
    """The 95 % intervals of one rule in one source, or in all together.

    Each is None where its figure is, or where there are fewer than two pairs; else it holds that
    figure. The interval of entropy is about all ratings of this kind, not only those at hand; a
    sample's entropy lies below theirs on average, so the interval reaches further up than down.

    Attributes:
        rule_id: The rule.
        source: The data set, or all together.
        entropy_low: Of the discrete entropy, in nats.
        entropy_high: Upper end.
        entropy_method: How it was made.
        half_low: Of the accuracy when a tie counts one half.
        half_high: Upper end.
        untied_low: When ties are left out.
        untied_high: Upper end.
        strict_low: When a tie is a miss.
        strict_high: Upper end.
        inclusive_low: When a tie is a hit.
        inclusive_high: Upper end.
    """

    rule_id: str
    source: str
    entropy_low: float | None
    entropy_high: float | None
    entropy_method: Method | None
    half_low: float | None
    half_high: float | None
    untied_low: float | None
    untied_high: float | None
    strict_low: float | None
    strict_high: float | None
    inclusive_low: float | None
    inclusive_high: float | None


def rule_intervals(
    statistics: SourceStatistics, *, num_draws: int = NUM_DRAWS, seed: int = SEED
) -> tuple[RuleInterval, ...]:
    """The intervals of each rule of a source, in order.

    The draws of a rule depend on the seed and on the names of source and rule alone: not on other
    rules, nor on the order of rows or how they are spread over files.

    Args:
        statistics: Of the source.
        num_draws: Samples of pairs, with replacement.
        seed: Of the generator.
    """
    return tuple(
        _rule_interval(statistics, place, num_draws=num_draws, seed=seed)
        for place in range(len(statistics.rules))
    )


def entropy_interval(
    entropy: float, cells: PairCells, *, rng: np.random.Generator, num_draws: int
) -> tuple[_Bounds, Method | None]:
    """The interval of a rule's entropy, and how it was made.

    Up to 1,000 cells it is the basic bootstrap: entropies H* of samples lie as far below H as H
    lies below the truth on average, so the interval is 2H - quantiles of H*. Above, the same in the
    limit of many pairs, where H* is normal.

    Args:
        entropy: H of the ratings in the cells, in nats.
        cells: The pairs; at least one has a rating.
        rng: For the draws.
        num_draws: Samples of pairs.
    """
    if cells.num_pairs < MIN_PAIRS:
        return _NONE, None
    cells = cells.without_order()
    if len(cells.num_pairs_C) > _MAX_DRAWN_CELLS:
        return _normal_limit(cells, entropy), "normal"
    num_pairs_DC = rng.multinomial(
        cells.num_pairs, cells.num_pairs_C / cells.num_pairs, size=num_draws
    )
    count_DL = num_pairs_DC @ cells.num_ratings_CL
    entropy_D = _entropies(count_DL[count_DL.any(axis=1)])
    low, high = _quantiles(entropy_D)
    return _around(entropy, 2 * entropy - high, 2 * entropy - low), "bootstrap"


def _rule_interval(
    statistics: SourceStatistics, place: int, *, num_draws: int, seed: int
) -> RuleInterval:
    rule = statistics.rules[place]
    rng = _generator(seed, statistics.source, rule.rule_id)
    (entropy_low, entropy_high), method = _entropy_bounds(statistics, place, rng, num_draws)
    win_D, tie_D, loss_D = _drawn_outcomes(statistics, place, rng, num_draws=num_draws)
    all_D = win_D + tie_D + loss_D
    drawn: dict[TiePolicy, tuple[_Floats, _Floats]] = {
        "half": (win_D + tie_D / 2, all_D),
        "untied": (win_D, win_D + loss_D),
        "strict": (win_D, all_D),
        "inclusive": (win_D + tie_D, all_D),
    }
    bounds = {name: _share_bounds(rule.accuracy.under(name), *drawn[name]) for name in drawn}
    return RuleInterval(
        rule_id=rule.rule_id,
        source=statistics.source,
        entropy_low=entropy_low,
        entropy_high=entropy_high,
        entropy_method=method,
        **{f"{name}_low": low for name, (low, _) in bounds.items()},
        **{f"{name}_high": high for name, (_, high) in bounds.items()},
    )


def _generator(seed: int, source: str, rule_id: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{source}\0{rule_id}".encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:16], "big")])


# --- accuracy -------------------------------------------------------------------------------------


def _drawn_outcomes(
    statistics: SourceStatistics, place: int, rng: np.random.Generator, *, num_draws: int
) -> tuple[_Floats, _Floats, _Floats]:
    """Wins, ties and losses in samples of pairs; none for fewer than two pairs."""
    outcomes = statistics.outcomes
    rated = [outcomes.wins_R[place], outcomes.ties_R[place], outcomes.losses_R[place]]
    count = np.array([*rated, outcomes.num_pairs - sum(rated)], dtype=np.float64)
    if outcomes.num_pairs < MIN_PAIRS:
        num_draws = 0
    drawn = rng.multinomial(outcomes.num_pairs, count / outcomes.num_pairs, size=num_draws)
    win_D, tie_D, loss_D, _ = drawn.T.astype(np.float64)
    return win_D, tie_D, loss_D


def _share_bounds(share: float | None, hit_D: _Floats, counted_D: _Floats) -> _Bounds:
    """The percentile interval of a share, over the draws that have anything to count."""
    is_defined_D = counted_D > 0
    if share is None or not is_defined_D.any():
        return _NONE
    return _around(share, *_quantiles(hit_D[is_defined_D] / counted_D[is_defined_D]))


# --- entropy --------------------------------------------------------------------------------------


def _entropy_bounds(
    statistics: SourceStatistics, place: int, rng: np.random.Generator, num_draws: int
) -> tuple[_Bounds, Method | None]:
    rule, cells = statistics.rules[place], statistics.cells[place]
    if rule.entropy_nats is None:
        return _NONE, None
    if cells is None:
        return _entropy_bound(rule, rule.entropy_nats, statistics.surprisal_variances[place])
    return entropy_interval(rule.entropy_nats, cells, rng=rng, num_draws=num_draws)


def _entropies(count_DL: _Floats) -> _Floats:
    """Entropy in nats of each row of counts: ln N - sum(c ln c) / N."""
    total_D = count_DL.sum(axis=1)
    mass_D = (count_DL * np.log(np.maximum(count_DL, 1.0))).sum(axis=1)
    return np.asarray(np.log(total_D) - mass_D / total_D, dtype=np.float64)


def _normal_limit(cells: PairCells, entropy: float) -> _Bounds:
    """Each pair adds the surprisals of its ratings, less H: their variance makes the width.

    H lies below the truth by half the sum over levels of the variance of their share by the share;
    where the two ratings of a pair are independent that is (levels - 1) / (2 N).
    """
    count_L = cells.count_L[cells.count_L > 0].astype(np.float64)
    num_ratings = float(count_L.sum())
    surprisal_M = np.log(num_ratings) - np.log(np.maximum(cells.count_L, 1))
    excess_M = np.append(surprisal_M - entropy, 0.0)  # the last state: missing
    excess_C = excess_M[cells.chosen_C] + excess_M[cells.rejected_C]
    variance = float(cells.num_pairs_C @ excess_C**2) / num_ratings**2
    is_twice_C = (cells.chosen_C == cells.rejected_C) & (cells.chosen_C < cells.num_levels)
    twice_share = cells.num_pairs_C[is_twice_C] / cells.count_L[cells.chosen_C[is_twice_C]]
    bias = (len(count_L) + 2 * float(twice_share.sum())) / num_ratings - 1 / cells.num_pairs
    second_order = (len(count_L) - 1) / (2 * num_ratings**2)
    half_width = _half_width(variance + second_order)
    return _around(entropy, entropy + bias / 2 - half_width, entropy + bias / 2 + half_width)


def _entropy_bound(
    rule: RuleStats, entropy: float, surprisal_variance: float | None
) -> tuple[_Bounds, Method | None]:
    """At least as wide as the limit: from pairs of independent to pairs of equal ratings."""
    if surprisal_variance is None or rule.num_pairs_total < MIN_PAIRS:
        return _NONE, None
    freedom = rule.num_levels - 1
    second_order = 2 * freedom / rule.num_ratings**2
    half_width = _half_width(2 * surprisal_variance / rule.num_ratings + second_order)
    low = entropy + freedom / (2 * rule.num_ratings) - half_width
    high = entropy + freedom / rule.num_ratings + half_width
    return _around(entropy, low, high), "bound"


def _half_width(variance: float) -> float:
    from scipy.special import ndtri

    return float(ndtri((1 + CONFIDENCE) / 2)) * math.sqrt(variance)


def _quantiles(value_D: _Floats) -> tuple[float, float]:
    low, high = np.quantile(value_D, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _around(value: float, low: float, high: float) -> _Bounds:
    """An interval that holds the value and does not begin below 0."""
    return max(min(low, value), 0.0), max(high, value)
