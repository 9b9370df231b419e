"""Estimate a rule's accuracy over untied pairs: its interval, what would decide, and its sources.

Pairs of one prompt belong together (`encore.analysis.share_intervals`). Where no prompt has several
pairs, an outcome's pairs are counted at once.

Suffixes: G prompts; 4 numbers of pairs: won, tied, lost, and lacking a rating.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from encore.analysis.bootstrap import Estimate
from encore.analysis.share_intervals import effective_number, exact_interval, share_interval
from encore.analysis.statistics import SourceStatistics

#: Probability that the further pairs decide, if the accuracy is the assumed one.
POWER = 0.8
#: Probability that the needed number of further pairs lies in its range.
CHANCE_OF_RANGE = 0.8
#: No larger number of further pairs is named.
MAX_MORE_PAIRS = 1_000_000

#: How pairs without a rating count: not at all, or all of them as won or as lost.
MissingAs = Literal["nothing", "won", "lost"]
_Counts = NDArray[np.int64]


def untied_interval(
    statistics: SourceStatistics,
    rule_index: int,
    *,
    confidence: float,
    missing_as: MissingAs = "nothing",
) -> Estimate:
    """Return a rule's accuracy over pairs without a tie, with its interval.

    Args:
        statistics: Statistics and counts of the source.
        rule_index: Index of the rule.
        confidence: Confidence of the interval.
        missing_as: How pairs count that lack a rating of the rule.
    """
    if statistics.pairs is None:
        counts = statistics.counts
        won, lost = int(counts.wins_R[rule_index]), int(counts.losses_R[rule_index])
        is_counted = missing_as != "nothing"
        num_missing = statistics.num_missing_pairs(rule_index) if is_counted else 0
        hits = won + (num_missing if missing_as == "won" else 0)
        return exact_interval(hits, won + lost + num_missing, confidence=confidence)
    won_G, _, lost_G, missing_G = statistics.outcomes_by_prompt(rule_index)
    if missing_as == "nothing":
        missing_G = np.zeros_like(missing_G)
    return share_interval(
        won_G + (missing_G if missing_as == "won" else 0),
        won_G + lost_G + missing_G,
        confidence=confidence,
        largest_group=int(np.bincount(statistics.pairs.group_P).max()),  # all may be ranked
    )


def more_pairs(
    statistics: SourceStatistics, rule_index: int, *, confidence: float, level: float = 0.5
) -> tuple[int | None, int | None, int | None]:
    """Return how many further pairs decide: at the estimate, and the ends of an 80 % range.

    The range has the numbers for all accuracies in the estimate's 80 % interval: the smaller end is
    for the accuracy farthest from 50 %, the larger for the nearest. None stands for more than
    `MAX_MORE_PAIRS`; at 50 % no number decides.

    With n untied pairs of true accuracy p, the interval leaves out 50 % with probability `POWER` if
    |p - 0.5| sqrt(n) = z / 2 + z' sqrt(p (1 - p)), with the normal quantiles z of the confidence
    and z' of the power. The exact interval needs 1 / |p - 0.5| pairs more (Fleiss's correction).
    Pairs of one prompt are worth less, by their design effect.

    Args:
        statistics: Statistics and counts of the source.
        rule_index: Index of the rule; it has an untied pair.
        confidence: Confidence of the interval that is to leave out the level.
        level: Accuracy that the interval is to leave out.
    """
    rule = statistics.rules[rule_index]
    likely = untied_interval(statistics, rule_index, confidence=CHANCE_OF_RANGE)
    if rule.tie_rate is None or rule.tie_rate == 1 or likely.value is None:
        return None, None, None
    z_confidence, z_power = ndtri([(1 + confidence) / 2, POWER]).tolist()
    pairs_per_untied = _design_effect(statistics, rule_index) / (1 - rule.tie_rate)

    def needed(accuracy: float) -> int | None:
        distance = abs(accuracy - level)
        if distance == 0:
            return None
        width = z_confidence * math.sqrt(0.25 - (level - 0.5) ** 2)
        width += z_power * math.sqrt(0.25 - (accuracy - 0.5) ** 2)
        num_untied = (width / distance) ** 2 + 1 / distance
        number = max(1, math.ceil(num_untied * pairs_per_untied) - rule.num_pairs)
        return number if number <= MAX_MORE_PAIRS else None

    low = 0.0 if likely.low is None else likely.low
    high = 1.0 if likely.high is None else likely.high
    nearest = min(max(level, low), high)
    farthest = max(low, high, key=lambda accuracy: abs(accuracy - level))
    return needed(likely.value), needed(farthest), needed(nearest)


def _design_effect(statistics: SourceStatistics, rule_index: int) -> float:
    """Return how many pairs of such prompts are worth one independent pair, at least 1."""
    if statistics.pairs is None:
        return 1.0
    won_G, _, lost_G, _ = statistics.outcomes_by_prompt(rule_index)
    return design_effect(won_G, lost_G)


def design_effect(won_G: _Counts, lost_G: _Counts) -> float:
    """Return how many untied pairs of such prompts are worth one independent pair, at least 1.

    Args:
        won_G: Number of pairs that each prompt's rule ranks as people do.
        lost_G: Number of pairs that it ranks the other way round; some prompt has a pair.
    """
    total_G = won_G + lost_G
    won_G, total_G = won_G[total_G > 0], total_G[total_G > 0]
    total, num_groups = int(total_G.sum()), len(total_G)
    share = float(won_G.sum() / total)
    if not 0 < share < 1 or num_groups < 2:
        return total / num_groups
    excess_G = np.asarray(won_G - share * total_G, dtype=np.float64)
    number = effective_number(excess_G, total_G.astype(np.float64), share * (1 - share))
    return max(1.0, total / number)


def heterogeneity_p(
    sources: Sequence[SourceStatistics], rule_index_by_source: Sequence[int]
) -> float | None:
    """Return the p-value that a rule's untied accuracy is the same in all sources.

    Each source is compared with the others together by Fisher's exact test; the smallest p-value
    counts, times the number of tests. Pairs that share a prompt count as so many independent ones
    as they are worth.

    Args:
        sources: Statistics of the sources in which the rule has untied pairs.
        rule_index_by_source: Index of the rule in each of them.

    Returns:
        None with fewer than two sources.
    """
    if len(sources) < 2:
        return None
    rows = []
    for source, rule_index in zip(sources, rule_index_by_source, strict=True):
        won, lost = (
            int(counts_R[rule_index]) for counts_R in (source.counts.wins_R, source.counts.losses_R)
        )
        effect = _design_effect(source, rule_index)
        rows.append((round(won / effect), round(lost / effect)))
    return equal_shares_p(rows)


def equal_shares_p(rows: Sequence[tuple[int, int]]) -> float:
    """Return the p-value that the share of pairs won is the same in all rows, as above.

    Args:
        rows: Numbers of independent pairs won and lost, of two rows at least.
    """
    table = np.array(rows)
    p_values = [
        _fisher_exact_p(*row.tolist(), *(table.sum(axis=0) - row).tolist())
        for row in (table[:1] if len(table) == 2 else table)
    ]
    return min(1.0, min(p_values) * len(p_values))


def _fisher_exact_p(won: int, lost: int, other_won: int, other_lost: int) -> float:
    """Return the two-sided p-value of Fisher's exact test, as `scipy.stats.fisher_exact` does.

    It is the probability of all tables with the same sums that are no more probable than this one.
    """
    # Not scipy.stats: it takes half as long to load as `analyze` takes for the paper's ratings.
    num_own, num_other, num_won = won + lost, other_won + other_lost, won + other_won
    total = num_own + num_other
    if not num_own or not num_other:
        return 1.0
    mean = num_won * num_own / total
    variance = mean * num_other / total * (total - num_won) / max(total - 1, 1)
    reach = (
        math.ceil(40 * math.sqrt(variance)) + 1
    )  # a probability beyond it is 0 in floating point
    low = max(0, num_won - num_other, math.floor(mean) - reach)
    high = min(num_own, num_won, math.ceil(mean) + reach)
    if not low <= won <= high:
        return 0.0
    won_K = np.arange(low, high, dtype=np.float64)
    ratio_K = (
        (num_own - won_K) * (num_won - won_K) / ((won_K + 1) * (num_other - num_won + won_K + 1))
    )
    log_p_K = np.append(0.0, np.cumsum(np.log(ratio_K)))
    p_K = np.exp(log_p_K - log_p_K.max())
    return float(p_K[p_K <= p_K[won - low] * (1 + 1e-7)].sum() / p_K.sum())
