"""Everything the report says, gathered before a line of it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from encore.analysis.statistics import POOLED
from encore.report.chart import Missing
from encore.report.words import printable

if TYPE_CHECKING:
    from encore.analysis.analyze import Analysis
    from encore.analysis.correlation import Correlation
    from encore.analysis.intervals import RuleInterval
    from encore.analysis.statistics import EntropyKind, RuleStats, TiePolicy
    from encore.analysis.verdicts import Verdict
    from encore.benchmarks.stored_tables import StoredTable
    from encore.evidence.convergence import ConvergenceCurve
    from encore.report.agreement import RuleAgreement
    from encore.report.histograms import RuleHistogram
    from encore.report.provenance import Provenance
    from encore.weighting.comparison import SchemeComparison
    from encore.weighting.leave_one_out import LeaveOneOut
    from encore.weighting.sweep import TauSweep

#: More sources than these, the largest, are told in tables and not drawn.
MAX_DRAWN_SOURCES = 6
#: Names of the figures of benchmark tables begin like this; a number follows.
BENCHMARK_FIGURE = "benchmark-"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRule:
    """A rule as the report calls it: by its place in the set, from 0 as the paper counts."""

    place: int
    rule_id: str
    title: str

    @property
    def words(self) -> str:
        """Number and title."""
        return f"{self.place} · {self.title}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Findings:
    """What is known about some ratings.

    Attributes:
        label: What the ratings are called: the name of a folder or file, never its place.
        rules: The rules in order.
        analysis: Statistics, for every source where sources could be told apart.
        histograms: How the ratings of each rule are spread, over all sources.
        agreement: How often each two rules side with the same response.
        comparison: Every weighting scheme on these ratings.
        sweep: ENCORE's weights over temperatures.
        left_out: What becomes of ENCORE's composition without each rule.
        convergence: How fast the weights settle as ratings come in.
        benchmarks: Every benchmark table of the ratings' study that has rows, by folder name.
        provenance: Where the ratings come from.
        notes: Plain sentences on what limits these figures, those of ``analysis`` included.
    """

    label: str
    rules: tuple[NamedRule, ...]
    analysis: Analysis
    histograms: tuple[RuleHistogram, ...] | Missing
    agreement: RuleAgreement
    comparison: SchemeComparison | Missing
    sweep: TauSweep | Missing
    left_out: LeaveOneOut | Missing
    convergence: ConvergenceCurve | Missing
    benchmarks: tuple[StoredTable | Missing, ...]
    provenance: Provenance
    notes: tuple[str, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """All sources together, then each; a single one is not told twice."""
        found = tuple(dict.fromkeys(rule.source for rule in self.analysis.rules))
        single = tuple(source for source in found if source != POOLED)
        return (POOLED,) if len(single) <= 1 else (POOLED, *single)

    @property
    def drawn_sources(self) -> tuple[str, ...]:
        """All sources together, then the largest, in their order."""
        pooled, *single = self.sources
        by_size = sorted(single, key=self._num_pairs, reverse=True)
        largest = set(by_size[:MAX_DRAWN_SOURCES])
        return (pooled, *(source for source in single if source in largest))

    @property
    def pooled(self) -> tuple[RuleStats, ...]:
        """Statistics of each rule over all sources, in the order of ``rules``."""
        return self.of_source(POOLED)

    def source_name(self, source: str) -> str:
        """What the report calls a source; if there is only one, all together are called so."""
        if source != POOLED:
            return printable(source)
        single = {rule.source for rule in self.analysis.rules} - {POOLED}
        return printable(single.pop()) if len(single) == 1 else "all sources"

    def of_source(self, source: str) -> tuple[RuleStats, ...]:
        """Statistics of the rules of one source."""
        return tuple(rule for rule in self.analysis.rules if rule.source == source)

    def rule(self, rule_id: str) -> NamedRule:
        """The rule of an id."""
        return next(rule for rule in self.rules if rule.rule_id == rule_id)

    def correlation(
        self, source: str, *, entropy: EntropyKind, accuracy: TiePolicy
    ) -> Correlation | None:
        """One row of the correlations."""
        return next(
            (
                row
                for row in self.analysis.correlation
                if (row.source, row.entropy, row.accuracy) == (source, entropy, accuracy)
            ),
            None,
        )

    def interval(self, source: str, rule_id: str) -> RuleInterval | None:
        """The bootstrap intervals of a rule in a source."""
        return next(
            (
                row
                for row in self.analysis.intervals
                if (row.source, row.rule_id) == (source, rule_id)
            ),
            None,
        )

    def verdicts(self, source: str) -> tuple[Verdict, ...]:
        """What is to be said of the paper's claim in a source."""
        return tuple(row for row in self.analysis.verdicts if row.source == source)

    def _num_pairs(self, source: str) -> int:
        return max((rule.num_pairs_total for rule in self.of_source(source)), default=0)


def benchmark_figures(findings: Findings) -> dict[str, StoredTable | Missing]:
    """The benchmark tables by the name of their figure, numbered from 1."""
    tables = enumerate(findings.benchmarks, start=1)
    return {f"{BENCHMARK_FIGURE}{place}": table for place, table in tables}


def named_rules(rule_ids: Sequence[str], titles: dict[str, str]) -> tuple[NamedRule, ...]:
    """Rules with their titles, in order; without a title the id stands for it."""
    return tuple(
        NamedRule(place=place, rule_id=rule_id, title=printable(titles.get(rule_id) or rule_id))
        for place, rule_id in enumerate(rule_ids)
    )
