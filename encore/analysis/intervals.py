"""Give each rule's entropy and accuracies a 95 % interval.

The two ratings of a pair belong together, and the pairs of a prompt do. So the entropy's interval
resamples pairs, or prompts where these have several pairs. Every figure of a resample of pairs
follows from counts of pairs by their two ratings, so the ratings are not read again. Accuracies are
shares: their intervals are exact, or over whole prompts (`encore.analysis.share_intervals`).
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
from encore.analysis.share_intervals import (
    Z_95,
    exact_interval,
    half_credit_interval,
    mean_credit_interval,
    share_interval,
)
from encore.analysis.statistics import (
    TIE_POLICIES,
    RuleStats,
    SourceStatistics,
    TiePolicy,
    hits_by_policy,
)
from encore.warehouse import PairRatings

# Suffixes: D draws, G prompts, C cells of pairs, L levels, M = L + 1 states: a level, or at the end
# that the rating is missing.

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

    by_level = statistics.by_level or statistics
    count_MM = by_level.counts.cells[rule_index]
    if rule.entropy_nats is not None and counts.num_pairs >= MIN_PAIRS:
        if by_level.pairs is not None:
            count_GL = level_counts_by_prompt(by_level.pairs, rule_index)
            if len(count_GL) >= MIN_PAIRS:
                entropy, method = prompt_entropy_interval(rule.entropy_nats, count_GL, rng=rng)
        elif count_MM is None:
            mean_square = by_level.mean_squared_surprisals[rule_index] or 0.0
            variance = max(mean_square - rule.entropy_nats**2, 0.0)
            entropy, method = _bound(rule, rule.entropy_nats, variance), "bound"
        else:
            entropy, method = entropy_interval(rule.entropy_nats, count_MM, rng=rng)

    if counts.num_pairs >= MIN_PAIRS:
        accuracies = _accuracies(statistics, rule_index)
    return RuleInterval(
        rule_id=rule.rule_id,
        source=statistics.source,
        entropy=entropy,
        entropy_method=method,
        **accuracies,
    )


def _accuracies(statistics: SourceStatistics, rule_index: int) -> dict[TiePolicy, Estimate]:
    """Return the accuracy under each tie policy with its interval.

    It is exact for a share of pairs, Wilson's with the variance of ties for half credit, and over
    whole prompts where these have several pairs.
    """
    counts, rule = statistics.counts, statistics.rules[rule_index]
    if not rule.num_pairs:
        return {policy: Estimate() for policy in TIE_POLICIES}
    if statistics.pairs is None:
        won, tied, lost = (
            int(count_R[rule_index]) for count_R in (counts.wins_R, counts.ties_R, counts.losses_R)
        )
        hits = hits_by_policy(won, tied, lost)
        half = rule.accuracy.half
        low, high = half_credit_interval(
            half or 0.0, tie_rate=tied / rule.num_pairs, num_pairs=rule.num_pairs
        )
        return {policy: exact_interval(*hits[policy]) for policy in TIE_POLICIES} | {
            "half": Estimate(value=half, low=low, high=high)
        }
    won_G, tied_G, lost_G, _ = statistics.outcomes_by_prompt(rule_index)
    hits_G = hits_by_policy(won_G, tied_G, lost_G)
    margin_P = statistics.pairs.margin_PR[:, rule_index]
    is_rated_P = ~np.isnan(margin_P)
    half_credit = mean_credit_interval(
        (np.sign(margin_P[is_rated_P]) + 1) / 2, statistics.pairs.group_P[is_rated_P]
    )
    largest = int((won_G + tied_G + lost_G).max())
    return {
        policy: share_interval(*hits_G[policy], largest_group=largest) for policy in TIE_POLICIES
    } | {"half": half_credit}


def level_counts_by_prompt(pairs: PairRatings, rule_index: int) -> NDArray[np.int64]:
    """Return how many ratings of each level each prompt has under a rule, shape [G, L].

    Prompts without a rating are left out.
    """
    rating_2P = pairs.rating_2PR[:, :, rule_index]
    is_rated_2P = ~np.isnan(rating_2P)
    level_L, level_N = np.unique(rating_2P[is_rated_2P], return_inverse=True)
    group_N = np.stack([pairs.group_P] * 2)[is_rated_2P]
    num_levels, num_groups = len(level_L), int(group_N.max(initial=-1)) + 1
    count_GL = np.bincount(group_N * num_levels + level_N, minlength=num_groups * num_levels)
    count_GL = count_GL.reshape(num_groups, num_levels)
    return count_GL[count_GL.any(axis=1)]


def prompt_entropy_interval(
    entropy: float, count_GL: NDArray[np.int64], *, rng: np.random.Generator
) -> tuple[Estimate, Method]:
    """Return the interval of a rule's entropy over resampled prompts, and how it was made.

    It is `entropy_interval` with prompts instead of pairs: the basic bootstrap up to 1,000 prompts
    and 1,000 levels, else its normal limit. There each prompt adds the surprisals of its ratings,
    less H for each, and H lies below the truth by half the sum over levels of the variance of their
    share by the share.

    Args:
        entropy: H of the ratings, in nats.
        count_GL: Ratings of each level in each prompt, at least two prompts.
        rng: Generator of the resamples.
    """
    num_groups, num_levels = count_GL.shape
    total_L = count_GL.sum(axis=0).astype(np.float64)
    if max(num_groups, num_levels) <= _MAX_DRAWN_CELLS:
        count_DL = draw_counts(np.ones(num_groups), rng=rng) @ count_GL
        total_D = count_DL.sum(axis=1)
        mass_D = (count_DL * np.log(np.maximum(count_DL, 1.0))).sum(axis=1)
        low, high = middle_95(np.log(total_D) - mass_D / total_D)
        return _around(entropy, 2 * entropy - high, 2 * entropy - low), "bootstrap"
    num_ratings, correction = total_L.sum(), num_groups / (num_groups - 1)
    share_L, size_G = total_L / num_ratings, count_GL.sum(axis=1)
    excess_G = count_GL @ -np.log(share_L) - entropy * size_G
    variance = correction * float(excess_G @ excess_G) / num_ratings**2
    squares_L = ((count_GL - size_G[:, None] * share_L) ** 2).sum(axis=0)
    bias = correction * float((squares_L / share_L).sum()) / num_ratings**2
    half_width = Z_95 * math.sqrt(variance + bias**2 / max(num_levels - 1, 1) / 2)
    middle = entropy + bias / 2
    return _around(entropy, middle - half_width, middle + half_width), "normal"


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
