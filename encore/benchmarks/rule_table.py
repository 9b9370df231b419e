"""What each rule is to a benchmark: its ratings, its head's own score, its weights."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from encore.analysis.statistics import RuleStats
from encore.benchmarks.metrics import score_margins
from encore.benchmarks.pairs import BenchmarkPairs
from encore.scoring.head_scores import HeadScores


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLine:
    """One rule; None is what is not known of it.

    Attributes:
        rule_id: The rule.
        entropy_nats: Of its training ratings.
        num_ratings: Of them, not null.
        training_accuracy: Share of training pairs that its ratings rank as people did, a tie
            counting half.
        training_tie_rate: Share of training pairs that it rates alike.
        score: The benchmark's headline under its head alone, 0 to 1.
        score_ci_low: Lower end of the 95 % interval.
        score_ci_high: Upper end.
    """

    rule_id: str
    entropy_nats: float | None
    num_ratings: int
    training_accuracy: float | None
    training_tie_rate: float | None
    score: float
    score_ci_low: float
    score_ci_high: float


def rule_lines(
    rules: Sequence[RuleStats], *, scores: HeadScores, pairs: BenchmarkPairs
) -> tuple[RuleLine, ...]:
    """One line a rule, in the order of the heads.

    Args:
        rules: Statistics of the training ratings; each has a head.
        scores: Of the heads on the benchmark, in the order of its pairs.
        pairs: Of the benchmark.
    """
    stats = {rule.rule_id: rule for rule in rules}
    score_P2R = scores.score_P2R.astype(np.float64)
    margin_PR = score_P2R[:, 0] - score_P2R[:, 1]
    return tuple(
        _line(stats[head], margin_PR[:, place], pairs=pairs)
        for place, head in enumerate(scores.head_ids)
    )


def rule_csv(
    lines: Sequence[RuleLine], *, weights: Mapping[str, Mapping[str, float]] | None = None
) -> str:
    """The lines as CSV with a header; what is not known is an empty cell.

    Args:
        lines: Of `rule_lines`.
        weights: Further columns: their name, and in them each rule's weight.
    """
    weights = weights or {}
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*RuleLine.__dataclass_fields__, *weights])
    for line in lines:
        writer.writerow([*_cells(line), *(column[line.rule_id] for column in weights.values())])
    return buffer.getvalue()


def _line(rule: RuleStats, margin_P: np.ndarray, *, pairs: BenchmarkPairs) -> RuleLine:
    headline = score_margins(margin_P, pairs=pairs, ties=pairs.benchmark.ties).headline
    return RuleLine(
        rule_id=rule.rule_id,
        entropy_nats=rule.entropy_nats,
        num_ratings=rule.num_ratings,
        training_accuracy=rule.accuracy.half,
        training_tie_rate=rule.tie_rate,
        score=headline.score,
        score_ci_low=headline.ci_low,
        score_ci_high=headline.ci_high,
    )


def _cells(line: RuleLine) -> Iterator[str | int | float]:
    for value in asdict(line).values():
        yield "" if value is None else value
