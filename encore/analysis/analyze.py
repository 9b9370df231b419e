"""Analyze ratings: statistics of each rule, and how entropy correlates with accuracy."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encore.analysis.answer_options import AnswerOptions
from encore.analysis.bootstrap import NUM_DRAWS
from encore.analysis.claim_verdicts import Verdict, verdicts
from encore.analysis.correlation import NULL_SEED, NUM_NULL_DRAWS, Correlation, correlations
from encore.analysis.intervals import SEED, RuleInterval, rule_intervals
from encore.analysis.notes import analysis_notes
from encore.analysis.paper_figures import PaperComparison, paper_comparisons
from encore.analysis.rule_verdicts import RuleAnswer, rule_answer
from encore.analysis.statistics import POOLED, RuleStats, rating_statistics
from encore.core.errors import InputError
from encore.warehouse import Ratings, open_ratings, open_warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Result of `analyze`.

    Attributes:
        answers: Verdicts on the rules of each source: which ones to trust.
        rules: Statistics of each source and rule; rules in rule-set order if it is known, else
            sorted.
        correlation: One row per source, kind of entropy and tie policy.
        intervals: One row per source and rule, in the order of ``rules``.
        verdicts: Verdict on the paper's claim for each source and kind of entropy that has a
            correlation.
        paper: The paper's numbers, with ours where the ratings have the same quantity.
        notes: Sentences on what limits these figures.
        ratings: The ratings that were analyzed.
    """

    answers: tuple[RuleAnswer, ...]
    rules: tuple[RuleStats, ...]
    correlation: tuple[Correlation, ...]
    intervals: tuple[RuleInterval, ...]
    verdicts: tuple[Verdict, ...]
    paper: tuple[PaperComparison, ...]
    notes: tuple[str, ...]
    ratings: Ratings = field(compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON of ``encore analyze --json``."""
        tables = {
            name: [dataclasses.asdict(row) for row in getattr(self, name)]
            for name in ("rules", "correlation", "verdicts", "paper")
        }
        for row, rule in zip(tables["rules"], self.rules, strict=True):
            row["coverage"] = rule.coverage
        return {
            "answer": [dataclasses.asdict(row) for answer in self.answers for row in answer.rows],
            **tables,
            "intervals": [row.as_dict() for row in self.intervals],
            "notes": list(self.notes),
            "draws": {
                "bootstrap": {"number": NUM_DRAWS, "seed": SEED},
                "null_band": {"number": NUM_NULL_DRAWS, "seed": NULL_SEED},
            },
        }


def analyze(
    ratings: str | Path | Ratings | Any,
    *,
    by_source: bool = False,
    options: AnswerOptions | None = None,
) -> Analysis:
    """Measure each rule's entropy, its accuracy on people's preferences, and their correlation.

    Args:
        ratings: A study, a Parquet file, a folder of them, a pyarrow Table or a pandas DataFrame
            with the columns ``pair_id, source, response, rule_id, rating``; or the result of
            `encore.open_ratings`, which chooses among runs and judges.
        by_source: True adds rows for each source before those of all sources together.
        options: Thresholds of the verdicts on rules; by default those of `AnswerOptions`.

    Raises:
        InputError: Not a ratings table. The message names file, column, value and expectation.
    """
    opened = open_ratings(ratings)
    with open_warehouse(opened) as warehouse:
        statistics = rating_statistics(warehouse)
    sources = [part.source for part in statistics[:-1]]
    if not by_source:
        statistics = statistics[-1:]
    elif POOLED in sources:
        raise InputError(
            f'{opened.label}: a source is called "{POOLED}", which stands for all sources '
            "together; rename it or leave out --by-source"
        )
    rule_numbers = {
        rule.rule_id: rule_number for rule_number, rule in enumerate(statistics[-1].rules, start=1)
    }
    rules = tuple(rule for part in statistics for rule in part.rules)
    correlation = tuple(row for part in statistics for row in correlations(part))
    return Analysis(
        answers=tuple(
            rule_answer(part, rule_numbers=rule_numbers, options=options or AnswerOptions())
            for part in statistics
        ),
        rules=rules,
        correlation=correlation,
        intervals=tuple(row for part in statistics for row in rule_intervals(part)),
        verdicts=verdicts(correlation),
        paper=paper_comparisons(correlation, rules, sources=sources),
        notes=tuple(analysis_notes(statistics, correlation)),
        ratings=opened,
    )
