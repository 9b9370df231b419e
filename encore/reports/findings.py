"""Compute everything that the report shows, before anything is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from encore.analysis.analyze import analyze
from encore.analysis.statistics import POOLED
from encore.benchmarks.benchmark_table import BenchmarkTable, read_table, table_folders
from encore.core.errors import InputError
from encore.core.number_text import counted, printable, sentence
from encore.data.study import Study
from encore.reports.figure_drawing import DataTable, Missing
from encore.reports.judge_sentence import judge_sentence
from encore.reports.provenance import Provenance, provenance_of
from encore.reports.rules_and_people import corrected_rates_table, rules_and_people
from encore.reports.rules_that_apply import rules_that_apply
from encore.warehouse import (
    PairRatings,
    Ratings,
    open_ratings,
    open_warehouse,
    read_pair_ratings,
    read_pairs_of,
)
from encore.weighting.label_curve import LabelCurve
from encore.weighting.label_curve import label_curve as measured_curve
from encore.weighting.scheme_comparison import (
    SchemeComparison,
    TauSweep,
    compare_schemes,
    sweep_tau,
)
from encore.weighting.scheme_options import SchemeOptions
from encore.weighting.weigh import pooled_evidence
from encore.weighting.weight_error import ratings_needed

if TYPE_CHECKING:
    from encore.analysis.analyze import Analysis
    from encore.analysis.claim_verdicts import Verdict
    from encore.analysis.correlation import Correlation
    from encore.analysis.intervals import RuleInterval
    from encore.analysis.rule_verdicts import RuleAnswer
    from encore.analysis.statistics import RuleStats

Outcome = TypeVar("Outcome")

#: With more sources than this (all together counts as one), only all together is drawn.
MAX_DRAWN_SOURCES = 7
#: Prefix of the names of benchmark figures; a number follows.
BENCHMARK_FIGURE = "benchmark-"
#: Temperatures of the sweep, dense enough for a smooth line: from one rule alone to nearly uniform.
_TAUS = (*(step * 10.0**power for power in (-2, -1, 0, 1) for step in (1, 1.5, 2, 3, 5, 7)), 100.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Findings:
    """Results about some ratings, as the report shows them.

    Attributes:
        label: Name of the study, or of the ratings' folder or file, never its path.
        titles: Title of each rule by its id, in rule order.
        judge: What kind of judge it is (`encore.reports.judge_sentence`).
        analysis: Statistics of rules, per source where sources can be told apart.
        pairs: Ratings of every pair, over all sources.
        comparison: Comparison of all weighting schemes on these ratings.
        sweep: ENCORE's weights over a range of temperatures.
        label_curve: Accuracy of fitted weights by number of labels; None if it was not asked for.
        people: Table of what people and probes say of each rule; None if the study has neither.
        rates: Table of people's rate under each rule, corrected by few labels; None without any.
        applicability: Table of how often each rule applies; None if every rule applies everywhere.
        enough: Sentence on how many ratings are enough; None if nothing can be said.
        benchmarks: Benchmark tables of the ratings' study that have rows, by figure name.
        provenance: Origin of the ratings: run, judge, versions.
        notes: Sentences on what limits these results, including those of ``analysis``.
    """

    label: str
    titles: Mapping[str, str]
    judge: str
    analysis: Analysis
    pairs: PairRatings
    comparison: SchemeComparison | Missing
    sweep: TauSweep | Missing
    label_curve: LabelCurve | Missing | None = None
    people: DataTable | None
    rates: DataTable | None
    applicability: DataTable | None
    enough: str | None
    benchmarks: Mapping[str, BenchmarkTable | Missing]
    provenance: Provenance
    notes: Sequence[str]

    @property
    def sources(self) -> tuple[str, ...]:
        """Return all sources together, then each source; a single source is listed once."""
        sources = _single_sources(self.analysis)
        return (POOLED, *sources) if len(sources) > 1 else (POOLED,)

    @property
    def drawn_sources(self) -> tuple[str, ...]:
        """Return the sources that are drawn: with very many sources, only all together."""
        return self.sources if len(self.sources) <= MAX_DRAWN_SOURCES else (POOLED,)

    @property
    def pooled(self) -> tuple[RuleStats, ...]:
        """Return the statistics of each rule over all sources, in rule order."""
        return self.of_source(POOLED)

    @property
    def num_pairs(self) -> int:
        """Return the number of preference pairs."""
        return max((rule.num_pairs_total for rule in self.pooled), default=0)

    @property
    def num_ratings(self) -> int:
        """Return the number of ratings that are not null."""
        return sum(rule.num_ratings for rule in self.pooled)

    @property
    def num_nulls(self) -> int:
        """Return the number of null ratings whose rule may apply."""
        return sum(rule.num_unparsed for rule in self.pooled)

    @property
    def num_not_applicable(self) -> int:
        """Return the number of null ratings whose rule does not apply."""
        return sum(
            row.num_not_applicable for row in self.analysis.applicability if row.source == POOLED
        )

    def source_name(self, source: str) -> str:
        """Return the name of a source in the report; a single source stands for all together."""
        single = _single_sources(self.analysis)
        if source == POOLED and len(single) != 1:
            return "all sources"
        return printable(source if source != POOLED else single[0])

    def answer(self, source: str) -> RuleAnswer:
        """Return the verdicts on the rules of one source."""
        return next(answer for answer in self.analysis.answers if answer.source == source)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return which rules to trust, then the verdicts on the paper's claim, a sentence each."""
        claims = (
            f"The paper's claim, {self.source_name(source)}, {verdict.entropy} entropy: "
            f"{verdict.verdict}."
            for source in self.sources
            for verdict in self.verdicts(source)
        )
        return (*self.answer(POOLED).summary, *claims)

    def of_source(self, source: str) -> tuple[RuleStats, ...]:
        """Return the statistics of each rule in one source."""
        return tuple(rule for rule in self.analysis.rules if rule.source == source)

    def intervals(self, source: str) -> tuple[RuleInterval, ...]:
        """Return the bootstrap intervals of each rule in one source."""
        return tuple(row for row in self.analysis.intervals if row.source == source)

    def correlations(self, source: str) -> tuple[Correlation, ...]:
        """Return the correlations of entropy with accuracy in one source."""
        return tuple(row for row in self.analysis.correlation if row.source == source)

    def verdicts(self, source: str) -> tuple[Verdict, ...]:
        """Return the verdicts on the paper's claim in one source."""
        return tuple(row for row in self.analysis.verdicts if row.source == source)

    def rule_number(self, rule_id: str) -> int:
        """Return the number of a rule: its position in the set, from 1."""
        return list(self.titles).index(rule_id) + 1

    def rule_label(self, rule_id: str) -> str:
        """Return the number and the title of a rule."""
        return f"{self.rule_number(rule_id)} · {self.titles[rule_id]}"


def gather(
    ratings: str | Path | Ratings | Any,
    *,
    label_curve: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> Findings:
    """Compute everything that a report shows about some ratings.

    A result that these ratings cannot give (weights of a rule without a rating, say) is `Missing`
    with its reason. Memory: about 48 bytes for each pair and rule.

    Args:
        ratings: Ratings as `encore.analysis.analyze.analyze` takes them.
        label_curve: True to measure fitted weights by number of labels.
        on_step: Function that receives the name of each step before it begins.

    Raises:
        InputError: The input is not a ratings table. The message names file, column and value.
    """
    opened = open_ratings(ratings)
    on_step("measuring rules")
    notes = []
    try:
        analysis = analyze(opened, by_source=True)
    except InputError as error:  # a source is called "all"; any other error is raised again
        analysis = analyze(opened)
        notes = [f"sources are not told apart: {printable(error)}"]
    notes += analysis.notes
    rule_ids = tuple(rule.rule_id for rule in analysis.rules if rule.source == POOLED)
    comparison: SchemeComparison | Missing
    sweep: TauSweep | Missing
    curve: LabelCurve | Missing | None = None
    with open_warehouse(opened) as warehouse:
        on_step("reading pairs")
        evidence = _attempt(partial(pooled_evidence, warehouse, opened))
        if isinstance(evidence, Missing):
            pairs = read_pair_ratings(warehouse, rule_ids=rule_ids)
            comparison, sweep, enough = evidence, evidence, None
        else:
            pairs = evidence.read_pairs()
            on_step("comparing weighting schemes")
            comparison = compare_schemes(evidence)
            sweep = sweep_tau(evidence, taus=_TAUS)
            notes += [*comparison.notes, *sweep.notes]
            if label_curve:
                on_step("fitting weights to more and more labels")
                curve = _attempt(partial(measured_curve, evidence, SchemeOptions()))
            on_step("drawing samples of pairs")
            is_level = opened.kind == "level"
            levels = pairs if is_level else read_pairs_of(opened.by_level)
            enough = sentence(ratings_needed(levels))
    sources = _single_sources(analysis)
    if len(sources) >= MAX_DRAWN_SOURCES:
        notes.append(
            f"{counted(len(sources), 'source')}: the tables list each one, the charts show all of "
            "them together"
        )
    provenance = provenance_of(opened, sources=sources)
    titles = {rule_id: printable(provenance.titles.get(rule_id) or rule_id) for rule_id in rule_ids}
    pooled = tuple(rule for rule in analysis.rules if rule.source == POOLED)
    label = "ratings" if opened.table is not None else Path(opened.label).resolve().name
    if opened.study is not None:  # a run's own folder has a key for a name
        label = opened.study.path.resolve().name
    return Findings(
        label=printable(label),
        titles=titles,
        judge=judge_sentence(analysis),
        analysis=analysis,
        pairs=pairs,
        comparison=comparison,
        sweep=sweep,
        label_curve=curve,
        people=rules_and_people(opened, titles, pooled),
        rates=corrected_rates_table(opened, titles),
        applicability=rules_that_apply(analysis, titles),
        enough=enough,
        benchmarks=_benchmarks(opened.study),
        provenance=provenance,
        notes=[sentence(note) for note in dict.fromkeys(notes)],
    )


def _single_sources(analysis: Analysis) -> tuple[str, ...]:
    """Return the names of the sources, in order of appearance."""
    return tuple(dict.fromkeys(rule.source for rule in analysis.rules if rule.source != POOLED))


def _benchmarks(study: Study | None) -> dict[str, BenchmarkTable | Missing]:
    """Read the benchmark tables of the ratings' study, by figure name."""
    folders = table_folders(study.path) if study else ()
    tables = [_attempt(partial(read_table, folder)) for folder in folders]
    with_rows = [table for table in tables if isinstance(table, Missing) or table.rows_with_figures]
    return {f"{BENCHMARK_FIGURE}{number}": table for number, table in enumerate(with_rows, start=1)}


def _attempt(compute: Callable[[], Outcome]) -> Outcome | Missing:
    """Return the outcome, or the reason why these ratings cannot give it."""
    try:
        return compute()
    except InputError as error:
        return Missing(sentence(error))
