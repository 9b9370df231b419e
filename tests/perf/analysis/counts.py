"""What follows from counts, the same for every library: entropies, intervals, correlations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.analysis.correlation import correlations
from encore.analysis.entropy import differential_entropy_nats, miller_madow_nats
from encore.analysis.intervals import rule_intervals
from encore.analysis.pair_counts import PairCounts
from encore.analysis.statistics import Accuracy, RuleStats, SourceStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a library counts.

    Attributes:
        levels: (source, rule, rating or None, number of rows).
        cells: (source, rule, chosen, rejected, number of pairs); ratings may be None.
        sign_PR_of: Of each source: sign(chosen - rejected) of every pair under every rule.
    """

    levels: Sequence[tuple[Any, ...]]
    cells: Sequence[tuple[Any, ...]]
    sign_PR_of: dict[str, NDArray[np.float64]]


def shares(wins: int, losses: int, ties: int) -> list[float]:
    """The four accuracies: half, strict, untied, inclusive."""
    pairs = wins + losses + ties
    shares_of = ((wins + ties / 2) / pairs, wins / pairs, wins / (wins + losses))
    return [float(share) for share in (*shares_of, (wins + ties) / pairs)]


def figures_of_counts(counts: Counts, *, rule_ids: Sequence[str]) -> dict[str, Any]:
    """Everything that `encore analyze --by-source` computes; a few figures of it to compare."""
    sources = [*sorted(counts.sign_PR_of), "all"]
    parts = [_source_statistics(counts, source, rule_ids) for source in sources]
    rows = [row for part in parts for row in correlations(part)]
    for part in parts:
        rule_intervals(part)
    pooled = parts[-1].rules
    return {
        "entropy": {rule.rule_id: rule.entropy_nats for rule in pooled},
        "half": {rule.rule_id: rule.accuracy.half for rule in pooled},
        "r": [row.pearson_r for row in rows],
    }


def _source_statistics(counts: Counts, source: str, rule_ids: Sequence[str]) -> SourceStatistics:
    names = sorted(counts.sign_PR_of) if source == "all" else [source]
    grams = [counts.sign_PR_of[name].T @ counts.sign_PR_of[name] for name in names]
    num_pairs = sum(len(counts.sign_PR_of[name]) for name in names)
    levels: dict[str, dict[float | None, int]] = defaultdict(lambda: defaultdict(int))
    for name, rule_id, rating, number in counts.levels:
        if name in names:
            levels[rule_id][_or_none(rating)] += number
    matrices = [
        _cell_matrix(counts, names, rule_id, levels[rule_id], num_pairs) for rule_id in rule_ids
    ]
    wins = np.array([np.tril(matrix[:-1, :-1], -1).sum() for matrix in matrices])
    losses = np.array([np.triu(matrix[:-1, :-1], 1).sum() for matrix in matrices])
    ties = np.array([np.trace(matrix[:-1, :-1]) for matrix in matrices])
    rules = tuple(
        _rule_stats(rule_id, source, levels[rule_id], num_pairs, outcome)
        for rule_id, *outcome in zip(rule_ids, wins, losses, ties, strict=True)
    )
    return SourceStatistics(
        source=source,
        rules=rules,
        counts=PairCounts(
            num_pairs=num_pairs,
            num_one_sided=0,
            wins_R=wins,
            losses_R=losses,
            ties_R=ties,
            sign_gram_RR=np.sum(grams, axis=0).astype(np.int64),
            cells=tuple(matrices),
        ),
        surprisal_variances=(0.0,) * len(rules),
    )


def _cell_matrix(
    counts: Counts,
    sources: Sequence[str],
    rule_id: str,
    levels: dict[float | None, int],
    num_pairs: int,
) -> NDArray[np.int64]:
    values = sorted(value for value in levels if value is not None)
    place: dict[float | None, int] = {value: place for place, value in enumerate(values)}
    place[None] = len(values)
    matrix = np.zeros((len(values) + 1, len(values) + 1), dtype=np.int64)
    for source, rule, chosen, rejected, number in counts.cells:
        if source in sources and rule == rule_id:
            matrix[place[_or_none(chosen)], place[_or_none(rejected)]] += number
    matrix[-1, -1] += num_pairs - matrix.sum()
    return matrix


def _rule_stats(
    rule_id: str,
    source: str,
    levels: dict[float | None, int],
    num_pairs: int,
    outcome: Sequence[int],
) -> RuleStats:
    known = sorted((value, number) for value, number in levels.items() if value is not None)
    value_L = np.array([value for value, _ in known])
    count_L = np.array([number for _, number in known], dtype=np.float64)
    total = int(count_L.sum())
    mass_L = count_L / total
    entropy = float(-(mass_L * np.log(mass_L)).sum())
    variance = float(count_L @ (value_L - mass_L @ value_L) ** 2) / (total - 1)
    bandwidth = math.sqrt(variance) * total**-0.2
    half, strict, untied, inclusive = shares(*outcome)
    return RuleStats(
        rule_id=rule_id,
        source=source,
        num_ratings=total,
        num_unparsed=levels.get(None, 0),
        num_levels=len(known),
        entropy_nats=entropy,
        entropy_miller_madow_nats=miller_madow_nats(
            entropy, num_levels=len(known), num_ratings=total
        ),
        differential_entropy_nats=differential_entropy_nats(
            value_L / bandwidth, np.zeros_like(value_L), count_L, bandwidth=bandwidth
        ),
        kde_bandwidth=bandwidth,
        top_level=float(value_L[count_L.argmax()]),
        top_level_share=float(mass_L.max()),
        num_pairs=sum(outcome),
        num_pairs_total=num_pairs,
        tie_rate=outcome[2] / sum(outcome),
        accuracy=Accuracy(half=half, strict=strict, untied=untied, inclusive=inclusive),
    )


def _or_none(rating: float | None) -> float | None:
    return None if rating is None or rating != rating else rating
