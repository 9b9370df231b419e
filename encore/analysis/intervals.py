"""Give each rule's entropy and accuracies a 95 % interval, by resampling whole pairs.

The two ratings of a pair belong together, so pairs are what is resampled. Every figure of a
resample follows from counts of pairs by their two ratings, so the ratings are not read again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import Estimate, draw_counts, middle_95
from encore.analysis.statistics import (
    TIE_POLICIES,
    Z_95,
    RuleStats,
    SourceStatistics,
    hits_by_policy,
)

# Suffixes: D draws, C cells of pairs, L levels, M = L + 1 states: a level, or at the end that the
# rating is missing.

SEED = 0
MIN_PAIRS = 2
#: With more cells than these, pairs are so many that the normal limit gives the same interval as
#: draws, which would take seconds.
_MAX_DRAWN_CELLS = 1000

#: How an interval of entropy was made: from resamples of pairs, from their normal limit, or from an
#: upper bound of the limit's width where a rule has too many levels to count pairs of them.
Method = Literal["bootstrap", "normal", "bound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleInterval:
    """The 95 % intervals of one rule in one source, or in all sources together.

    An estimate has no ends if its value is None, or if there are fewer than two pairs. Otherwise
    the interval contains the value. The interval of entropy is about all ratings of this kind, not
    only about this sample. A sample's entropy is too low on average, so the interval reaches
    further up than down.

    Attributes:
        rule_id: The rule, as in the rule set.
        source: The data set, or `POOLED` for all together.
        entropy: Discrete entropy, in nats.
        entropy_method: Method of the entropy's interval; None without an interval.
        half: Accuracy if a tie counts one half.
        untied: Accuracy over pairs without a tie.
        strict: Accuracy if a tie is a miss.
        inclusive: Accuracy if a tie is a hit.
    """

    rule_id: str
    source: str
    entropy: Estimate
    entropy_method: Method | None
    half: Estimate
    untied: Estimate
    strict: Estimate
    inclusive: Estimate

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values; ``entropy`` becomes ``entropy_low, entropy_high``."""
        row: dict[str, Any] = {}
        for name, value in dataclasses.asdict(self).items():
            if isinstance(value, dict):
                row |= {f"{name}_low": value["low"], f"{name}_high": value["high"]}
            else:
                row[name] = value
        return row


def rule_intervals(statistics: SourceStatistics, *, seed: int = SEED) -> tuple[RuleInterval, ...]:
    """Return the intervals of each rule of a source, in the order of the rules.

    The draws of a rule depend on the seed and on the names of source and rule alone: not on other
    rules, nor on the order of rows or how they are spread over files.

    Args:
        statistics: Statistics and counts of the source.
        seed: Seed of the draws, with the names of source and rule.
    """
    num_rules = len(statistics.rules)
    return tuple(_rule_interval(statistics, index, seed=seed) for index in range(num_rules))


def _rule_interval(statistics: SourceStatistics, rule_index: int, *, seed: int) -> RuleInterval:
    rule, counts = statistics.rules[rule_index], statistics.counts
    digest = hashlib.sha256(f"{statistics.source}\0{rule.rule_id}".encode()).digest()
    rng = np.random.default_rng([seed, int.from_bytes(digest[:16], "big")])
    method: Method | None = None
    figures = {policy: rule.accuracy.for_policy(policy) for policy in TIE_POLICIES}
    accuracies = {policy: Estimate(value=accuracy) for policy, accuracy in figures.items()}
    entropy = Estimate(value=rule.entropy_nats)

    # Entropy: from counts of pairs by their two ratings, if the rule has them.
    count_MM = counts.cells[rule_index]
    if rule.entropy_nats is not None and counts.num_pairs >= MIN_PAIRS:
        if count_MM is None:
            mean_square = statistics.mean_squared_surprisals[rule_index] or 0.0
            variance = max(mean_square - rule.entropy_nats**2, 0.0)
            entropy, method = _bound(rule, rule.entropy_nats, variance), "bound"
        else:
            entropy, method = entropy_interval(rule.entropy_nats, count_MM, rng=rng)

    # Accuracies: from counts of won, tied and lost pairs, and of pairs not rated fully.
    if counts.num_pairs >= MIN_PAIRS:
        rated = [count_R[rule_index] for count_R in (counts.wins_R, counts.ties_R, counts.losses_R)]
        outcome_counts = np.array([*rated, counts.num_pairs - sum(rated)])
        win_D, tie_D, loss_D, _ = draw_counts(outcome_counts, rng=rng).T
        for policy, (hit_D, counted_D) in hits_by_policy(win_D, tie_D, loss_D).items():
            accuracy, is_defined_D = figures[policy], counted_D > 0
            if accuracy is not None and is_defined_D.any():
                accuracy_D = hit_D[is_defined_D] / counted_D[is_defined_D]
                accuracies[policy] = _around(accuracy, *middle_95(accuracy_D))
    return RuleInterval(
        rule_id=rule.rule_id,
        source=statistics.source,
        entropy=entropy,
        entropy_method=method,
        **accuracies,
    )


def entropy_interval(
    entropy: float, count_MM: NDArray[np.int64], *, rng: np.random.Generator
) -> tuple[Estimate, Method]:
    """Return the interval of a rule's entropy, and how it was made.

    Up to 1,000 cells it is the basic bootstrap. The entropy H* of a resample lies as far below H as
    H lies below the truth on average, so the interval is 2H - quantiles of H*. With more cells it
    is the same in the limit of many pairs, where H* is normal.

    Args:
        entropy: H of the ratings, in nats.
        count_MM: Pairs by the states of their two responses, shape [M, M]: at least two pairs, at
            least one rating.
        rng: Generator of the resamples.
    """
    # Which response has which rating does not matter.
    count_MM = np.triu(count_MM) + np.tril(count_MM, -1).T
    low_C, high_C = np.nonzero(count_MM)
    if len(low_C) > _MAX_DRAWN_CELLS:
        return _normal_limit(count_MM, entropy), "normal"
    state_MM = np.eye(len(count_MM))
    num_ratings_CL = (state_MM[low_C] + state_MM[high_C])[:, :-1]
    count_DL = draw_counts(count_MM[low_C, high_C], rng=rng) @ num_ratings_CL
    count_DL = count_DL[count_DL.any(axis=1)]
    total_D = count_DL.sum(axis=1)
    mass_D = (count_DL * np.log(np.maximum(count_DL, 1.0))).sum(axis=1)
    low, high = middle_95(np.log(total_D) - mass_D / total_D)
    return _around(entropy, 2 * entropy - high, 2 * entropy - low), "bootstrap"


def _normal_limit(count_MM: NDArray[np.int64], entropy: float) -> Estimate:
    """Return the interval of entropy in the limit of many pairs.

    Each pair adds the surprisals of its ratings, less H; their variance gives the width. H lies
    below the truth by half the sum over levels of the variance of their share by the share. Where
    the two ratings of a pair are independent that is (levels - 1) / (2 N).
    """
    count_L = (count_MM.sum(axis=0) + count_MM.sum(axis=1))[:-1]
    num_ratings, num_levels = float(count_L.sum()), np.count_nonzero(count_L)
    count_L = np.maximum(count_L, 1)  # a level of another source has none here
    excess_M = np.append(np.log(num_ratings) - np.log(count_L) - entropy, 0.0)
    variance = float((count_MM * np.add.outer(excess_M, excess_M) ** 2).sum()) / num_ratings**2
    twice_share = float((np.diag(count_MM)[:-1] / count_L).sum())
    bias = (num_levels + 2 * twice_share) / num_ratings - 1 / int(count_MM.sum())
    second_order = (num_levels - 1) / (2 * num_ratings**2)
    half_width = Z_95 * math.sqrt(variance + second_order)
    return _around(entropy, entropy + bias / 2 - half_width, entropy + bias / 2 + half_width)


def _bound(rule: RuleStats, entropy: float, surprisal_variance: float) -> Estimate:
    """Return an interval at least as wide as the normal limit's, without counts of pairs.

    Its lower end is that of pairs of independent ratings, its upper end that of equal ratings.
    """
    freedom = rule.num_levels - 1
    second_order = 2 * freedom / rule.num_ratings**2
    half_width = Z_95 * math.sqrt(2 * surprisal_variance / rule.num_ratings + second_order)
    low = entropy + freedom / (2 * rule.num_ratings) - half_width
    return _around(entropy, low, entropy + freedom / rule.num_ratings + half_width)


def _around(value: float, low: float, high: float) -> Estimate:
    """Return an interval that contains the value and does not begin below 0."""
    return Estimate(value=value, low=max(min(low, value), 0.0), high=max(high, value))
