"""Analyze ratings: statistics of each rule, and how entropy correlates with accuracy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encore.analysis.analysis_views import answer_html, answer_plot, answer_text
from encore.analysis.answer_options import AnswerOptions
from encore.analysis.applicability import Applicability
from encore.analysis.bootstrap import NUM_DRAWS
from encore.analysis.claim_verdicts import Verdict, verdicts
from encore.analysis.correlation import NULL_SEED, NUM_NULL_DRAWS, Correlation, correlations
from encore.analysis.effective_rules import EffectiveRules, effective_rules
from encore.analysis.intervals import SEED, RuleInterval, rule_intervals
from encore.analysis.notes import analysis_notes
from encore.analysis.paper_figures import PaperComparison, paper_comparisons
from encore.analysis.rule_verdicts import RuleAnswer, RuleVerdict, rule_answer
from encore.analysis.statistics import POOLED, RuleStats, rating_statistics
from encore.analysis.variance_shares import VarianceShares, variance_shares
from encore.core.errors import InputError
from encore.core.number_text import counted, printable
from encore.core.record_table import RecordTable
from encore.warehouse import RatingKind, Ratings, Scale, open_ratings, open_warehouse

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Analysis:
    """Result of `analyze`. A terminal and a notebook show its answer for all sources together.

    ``rules``, ``correlation``, ``intervals``, ``variance`` and ``applicability`` are tuples with
    ``to_pandas()`` and ``to_arrow()``.

    Attributes:
        answers: Verdicts on the rules of each source: which ones to trust.
        rules: Statistics of each source and rule; rules in rule-set order if it is known, else
            sorted.
        correlation: One row per source, kind of entropy and tie policy.
        intervals: One row per source and rule, in the order of ``rules``.
        variance: What each rule's ratings are made of, in the order of ``rules``.
        effective_rules: How many independent rules the rules of each source are worth.
        applicability: How often each rule applies, in the order of ``rules``; empty if no judge
            said of a rule that it does not apply.
        verdicts: Verdict on the paper's claim for each source and kind of entropy that has a
            correlation.
        paper: The paper's numbers, with ours where the ratings have the same quantity.
        notes: Sentences on what limits these figures.
        ratings: The ratings that were analyzed.
    """

    answers: tuple[RuleAnswer, ...]
    rules: RecordTable[RuleStats]
    correlation: RecordTable[Correlation]
    intervals: RecordTable[RuleInterval]
    variance: RecordTable[VarianceShares]
    applicability: RecordTable[Applicability]
    effective_rules: tuple[EffectiveRules, ...]
    verdicts: tuple[Verdict, ...]
    paper: tuple[PaperComparison, ...]
    notes: tuple[str, ...]
    ratings: Ratings = field(compare=False)

    def __repr__(self) -> str:
        return answer_text(self.answers[-1], subject=self._subject())

    def _repr_html_(self) -> str:
        """Return the answer as HTML for a notebook."""
        return answer_html(self.answers[-1], subject=self._subject())

    def _subject(self) -> str:
        """Return a line on what was analyzed."""
        answer, rules = self.answers[-1], self.rules[-len(self.answers[-1].rows) :]
        counts = (
            counted(len(answer.rows), "rule"),
            counted(sum(rule.num_ratings for rule in rules), "rating"),
            answer.pairs_and_prompts,
        )
        mark = "; synthetic" if self.ratings.synthetic else ""
        return f"{printable(Path(self.ratings.label).name)}: {', '.join(counts)}{mark}"

    def plot(self) -> Figure:
        """Return a Matplotlib figure of the rules' accuracy; no display is needed.

        Raises:
            EncoreError: Matplotlib is not installed.
        """
        return answer_plot(self.answers[-1], subject=self._subject())

    def to_pandas(self) -> pd.DataFrame:
        """Return the answer as a data frame: a row for each rule of each source.

        Columns: ``source``, ``number``, ``rule_id``, ``verdict``, ``untied``, ``low``, ``high``,
        ``tie_rate``, ``weight``, ``agrees_with_others``, ``reason``, ``remedy``; ``applies`` after
        ``tie_rate`` if rules do not apply everywhere. Shares are in [0, 1].

        Raises:
            EncoreError: pandas is not installed.
        """
        has_shares = bool(self.applicability)
        rows = [
            _answer_cells(row, has_shares=has_shares)
            for answer in self.answers
            for row in answer.rows
        ]
        return RecordTable(rows).to_pandas()

    @property
    def rule_ids(self) -> list[str]:
        """Return the ids of all rules in the order of their numbers."""
        return [rule.rule_id for rule in self.rules if rule.source == POOLED]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON of ``encore analyze --json``."""
        tables = {
            name: [dataclasses.asdict(row) for row in getattr(self, name)]
            for name in (
                *("rules", "correlation", "verdicts", "paper"),
                *("variance", "effective_rules"),
            )
        }
        for row, rule in zip(tables["rules"], self.rules, strict=True):
            row["coverage"] = rule.coverage
        return {
            "answer": [row.as_dict() for answer in self.answers for row in answer.rows],
            **tables,
            "intervals": [row.as_dict() for row in self.intervals],
            "pairs": [
                {
                    "source": answer.source,
                    "num_pairs": answer.num_pairs,
                    "num_prompts": answer.num_prompts,
                }
                for answer in self.answers
            ],
            "notes": list(self.notes),
            **(
                {"applicability": [dataclasses.asdict(row) for row in self.applicability]}
                if self.applicability
                else {}
            ),
            **({"scale": list(self.ratings.scale)} if self.ratings.scale else {}),
            "draws": {
                "bootstrap": {"number": NUM_DRAWS, "seed": SEED},
                "null_band": {"number": NUM_NULL_DRAWS, "seed": NULL_SEED},
            },
        }


def _answer_cells(row: RuleVerdict, *, has_shares: bool) -> dict[str, Any]:
    """Return what the printed table says of a rule, by column."""
    return {
        "source": row.source,
        "number": row.number,
        "rule_id": row.rule_id,
        "verdict": row.verdict,
        "untied": row.untied.value,
        "low": row.untied.low,
        "high": row.untied.high,
        "tie_rate": row.tie_rate,
        **({"applies": row.applies} if has_shares else {}),
        "weight": row.weight,
        "agrees_with_others": row.agrees_with_others.value,
        "reason": row.reason_and_caveat,
        "remedy": row.remedy,
    }


def analyze(
    ratings: str | Path | Ratings | Any,
    *,
    by_source: bool = False,
    options: AnswerOptions | None = None,
    repeat: str | Path | Ratings | Any | None = None,
    scale: Scale | None = None,
    rule_columns: Sequence[str] | str | None = None,
    rating: RatingKind | None = None,
) -> Analysis:
    """Measure each rule's entropy, its accuracy on people's preferences, and their correlation.

    >>> analysis = analyze("ratings.csv")
    >>> [rule.rule_id for rule in analysis.rules]
    ['avoid-harm', 'be-kind', 'privacy']
    >>> analysis.rules.to_pandas()["num_pairs"].tolist()
    [40, 40, 40]

    Args:
        ratings: A study, or the data set that `encore publish --dataset` writes; a CSV or Parquet
            file, a folder of Parquet files; a data frame of pandas or Polars (lazy too), an Arrow
            table, a Hugging Face data set, a list of dicts; or the result of
            `encore.open_ratings`, which chooses among runs and judges. The columns are ``pair_id,
            source, response, rule_id, rating``. A table without ``rule_id`` and ``rating`` is
            wide: it has ``pair_id``, ``response``, maybe ``source`` (else it is ``table``), and
            every other column has the ratings of the rule that it is named after. Of a table, a
            column ``prompt_id`` says which pairs share a prompt, and so belong together; without
            one, pairs count as independent. A study knows its prompts.
        by_source: True adds rows for each source before those of all sources together.
        options: Thresholds of the verdicts on rules; by default those of `AnswerOptions`.
        repeat: Ratings of the same judge, asked the same again, in any form that ``ratings`` takes.
            They give the judge's noise.
        scale: Ends of the scale of a table's ratings, e.g. ``(1, 5)``, if it is not 0 to 1.
        rule_columns: Columns of a wide table that are rules; None takes all that are no keys.
        rating: The kind of rating that is compared, see `encore.open_ratings`; entropies are always
            those of the levels.

    Raises:
        InputError: Not a ratings table. The message names file, column, value and expectation.
    """
    opened = open_ratings(ratings, scale=scale, rule_columns=rule_columns, rating=rating)
    with open_warehouse(opened) as warehouse:
        statistics = rating_statistics(warehouse)
    parts = statistics[:-1]
    sources = [part.source for part in parts]
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
    rules = RecordTable(rule for part in statistics for rule in part.rules)
    correlation = RecordTable(row for part in statistics for row in correlations(part))
    return Analysis(
        answers=tuple(
            rule_answer(
                part,
                rule_numbers=rule_numbers,
                options=options or AnswerOptions(),
                sources=parts if part is statistics[-1] and len(parts) > 1 else (),
                has_expected=opened.manifest is not None and opened.manifest.has_expected,
            )
            for part in statistics
        ),
        rules=rules,
        correlation=correlation,
        intervals=RecordTable(row for part in statistics for row in rule_intervals(part)),
        variance=RecordTable(
            variance_shares(
                statistics, opened, repeat=None if repeat is None else open_ratings(repeat)
            )
        ),
        effective_rules=tuple(map(effective_rules, statistics)),
        verdicts=verdicts(correlation),
        paper=paper_comparisons(correlation, rules, sources=sources),
        notes=(*analysis_notes(statistics, correlation), *opened.notes),
        ratings=opened,
        applicability=RecordTable(row for part in statistics for row in part.applicability),
    )
