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

from encore.analysis.statistics import Z_95, RuleStats, SourceStatistics, hits_by_policy, middle_95

# Suffixes: D draws, C cells of pairs, L levels, M = L + 1 states: a level, or at the end that the
# rating is missing.

NUM_DRAWS = 2000
SEED = 0
MIN_PAIRS = 2
#: With more cells than these, pairs are so many that the normal limit says the same as draws, which
#: would take seconds.
_MAX_DRAWN_CELLS = 1000

#: How an interval of entropy was made: from draws of pairs, from their normal limit, or from an
#: upper bound of the limit's width where a rule has too many levels to count pairs of them.
Method = Literal["bootstrap", "normal", "bound"]

_Floats = NDArray[np.float64]
_Bounds = tuple[float | None, float | None]


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


def rule_intervals(statistics: SourceStatistics, *, seed: int = SEED) -> tuple[RuleInterval, ...]:
    """The intervals of each rule of a source, in order.

    The draws of a rule depend on the seed and on the names of source and rule alone: not on other
    rules, nor on the order of rows or how they are spread over files.

    Args:
        statistics: Of the source.
        seed: Of the generator.
    """
    return tuple(
        _rule_interval(statistics, place, seed=seed) for place in range(len(statistics.rules))
    )


def _rule_interval(statistics: SourceStatistics, place: int, *, seed: int) -> RuleInterval:
    rule, counts = statistics.rules[place], statistics.counts
    digest = hashlib.sha256(f"{statistics.source}\0{rule.rule_id}".encode()).digest()
    rng = np.random.default_rng([seed, int.from_bytes(digest[:16], "big")])
    method: Method | None = None
    bounds: dict[str, _Bounds] = {"entropy": (None, None)}
    count_MM = counts.cells[place]
    if rule.entropy_nats is not None and counts.num_pairs >= MIN_PAIRS:
        if count_MM is None:
            mean_square = statistics.mean_squared_surprisals[place] or 0.0
            variance = max(mean_square - rule.entropy_nats**2, 0.0)
            bounds["entropy"], method = _widest_limit(rule, rule.entropy_nats, variance), "bound"
        else:
            bounds["entropy"], method = entropy_interval(rule.entropy_nats, count_MM, rng=rng)
    rated = [int(one[place]) for one in (counts.wins_R, counts.ties_R, counts.losses_R)]
    share_of = np.array([*rated, counts.num_pairs - sum(rated)]) / counts.num_pairs
    num_draws = NUM_DRAWS if counts.num_pairs >= MIN_PAIRS else 0
    win_D, tie_D, loss_D, _ = rng.multinomial(counts.num_pairs, share_of, size=num_draws).T
    for policy, (hit_D, counted_D) in hits_by_policy(win_D, tie_D, loss_D).items():
        share, is_defined_D = rule.accuracy.for_policy(policy), counted_D > 0
        bounds[policy] = (None, None)
        if share is not None and is_defined_D.any():
            share_D = hit_D[is_defined_D] / counted_D[is_defined_D]
            bounds[policy] = _around(share, *middle_95(share_D))
    return RuleInterval(
        rule_id=rule.rule_id,
        source=statistics.source,
        entropy_method=method,
        **{f"{name}_low": low for name, (low, _) in bounds.items()},
        **{f"{name}_high": high for name, (_, high) in bounds.items()},
    )


def entropy_interval(
    entropy: float, count_MM: NDArray[np.int64], *, rng: np.random.Generator
) -> tuple[tuple[float, float], Method]:
    """The interval of a rule's entropy, and how it was made.

    Up to 1,000 cells it is the basic bootstrap: entropies H* of samples lie as far below H as H
    lies below the truth on average, so the interval is 2H - quantiles of H*. Above, the same in the
    limit of many pairs, where H* is normal.

    Args:
        entropy: H of the ratings, in nats.
        count_MM: At least two pairs by their two states; one has a rating.
        rng: For the draws of pairs, with replacement.
    """
    # Which response has which rating does not matter.
    count_MM = np.triu(count_MM) + np.tril(count_MM, -1).T
    low_C, high_C = np.nonzero(count_MM)
    if len(low_C) > _MAX_DRAWN_CELLS:
        return _normal_limit(count_MM, entropy), "normal"
    num_pairs, count_C = int(count_MM.sum()), count_MM[low_C, high_C]
    state_MM = np.eye(len(count_MM))
    num_ratings_CL = (state_MM[low_C] + state_MM[high_C])[:, :-1]
    count_DL = rng.multinomial(num_pairs, count_C / num_pairs, size=NUM_DRAWS) @ num_ratings_CL
    count_DL = count_DL[count_DL.any(axis=1)]
    total_D = count_DL.sum(axis=1)
    mass_D = (count_DL * np.log(np.maximum(count_DL, 1.0))).sum(axis=1)
    low, high = middle_95(np.log(total_D) - mass_D / total_D)
    return _around(entropy, 2 * entropy - high, 2 * entropy - low), "bootstrap"


def _normal_limit(count_MM: NDArray[np.int64], entropy: float) -> tuple[float, float]:
    """Each pair adds the surprisals of its ratings, less H: their variance makes the width.

    H lies below the truth by half the sum over levels of the variance of their share by the share;
    where the two ratings of a pair are independent that is (levels - 1) / (2 N).
    """
    count_L = (count_MM.sum(axis=0) + count_MM.sum(axis=1))[:-1]
    num_ratings, num_levels = float(count_L.sum()), np.count_nonzero(count_L)
    count_L = np.maximum(count_L, 1)  # a level of another source
    excess_M = np.append(np.log(num_ratings) - np.log(count_L) - entropy, 0.0)
    variance = float((count_MM * np.add.outer(excess_M, excess_M) ** 2).sum()) / num_ratings**2
    twice_share = float((np.diag(count_MM)[:-1] / count_L).sum())
    bias = (num_levels + 2 * twice_share) / num_ratings - 1 / int(count_MM.sum())
    second_order = (num_levels - 1) / (2 * num_ratings**2)
    half_width = Z_95 * math.sqrt(variance + second_order)
    return _around(entropy, entropy + bias / 2 - half_width, entropy + bias / 2 + half_width)


def _widest_limit(
    rule: RuleStats, entropy: float, surprisal_variance: float
) -> tuple[float, float]:
    """At least as wide as the limit: from pairs of independent to pairs of equal ratings."""
    freedom = rule.num_levels - 1
    second_order = 2 * freedom / rule.num_ratings**2
    half_width = Z_95 * math.sqrt(2 * surprisal_variance / rule.num_ratings + second_order)
    low = entropy + freedom / (2 * rule.num_ratings) - half_width
    return _around(entropy, low, entropy + freedom / rule.num_ratings + half_width)


def _around(value: float, low: float, high: float) -> tuple[float, float]:
    """An interval that holds the value and does not begin below 0."""
    return max(min(low, value), 0.0), max(high, value)
