"""Everything the report says, gathered before a line of it is drawn."""

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
from encore.report.figure_drawing import DataTable, Missing
from encore.report.provenance import Provenance, provenance_of
from encore.report.rules_and_people import rules_and_people
from encore.warehouse import PairRatings, Ratings, open_ratings, open_warehouse, read_pair_ratings
from encore.weighting.ratings_needed import ratings_needed
from encore.weighting.scheme_comparison import (
    SchemeComparison,
    TauSweep,
    compare_schemes_on,
    sweep_tau,
)
from encore.weighting.weigh import evidence_of
from encore.weighting.weights_config import SchemeOptions

if TYPE_CHECKING:
    from encore.analysis.analyze import Analysis
    from encore.analysis.claim_verdicts import Verdict
    from encore.analysis.correlation import Correlation
    from encore.analysis.intervals import RuleInterval
    from encore.analysis.statistics import RuleStats

Found = TypeVar("Found")

#: More than these, all together among them, are told in tables and not drawn.
MAX_DRAWN_SOURCES = 7
#: Names of the figures of benchmark tables begin like this; a number follows.
BENCHMARK_FIGURE = "benchmark-"
#: Dense enough for a smooth line, from one rule alone to nearly uniform.
_TAUS = (*(step * 10.0**power for power in (-2, -1, 0, 1) for step in (1, 1.5, 2, 3, 5, 7)), 100.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Findings:
    """What is known about some ratings.

    Attributes:
        label: What the ratings are called: the name of a folder or file, never its place.
        titles: Of each rule by its id, in the order of the rules.
        analysis: Statistics, for every source where sources could be told apart.
        pairs: The ratings of every pair, over all sources.
        comparison: Every weighting scheme on these ratings.
        sweep: ENCORE's weights over temperatures.
        people: What people and probes say of each rule; None where the study knows nothing.
        enough: How many ratings are enough, as a sentence; None where nothing can be said.
        benchmarks: The benchmark tables of the ratings' study that have rows, by figure name.
        provenance: Where the ratings come from.
        notes: Sentences on what limits these figures, those of ``analysis`` included.
    """

    label: str
    titles: Mapping[str, str]
    analysis: Analysis
    pairs: PairRatings
    comparison: SchemeComparison | Missing
    sweep: TauSweep | Missing
    people: DataTable | None
    enough: str | None
    benchmarks: Mapping[str, BenchmarkTable | Missing]
    provenance: Provenance
    notes: Sequence[str]

    @property
    def sources(self) -> tuple[str, ...]:
        """All sources together, then each; a single one is not told twice."""
        single = _single_sources(self.analysis)
        return (POOLED, *single) if len(single) > 1 else (POOLED,)

    @property
    def drawn_sources(self) -> tuple[str, ...]:
        """The sources that are drawn: of very many, all together alone."""
        return self.sources if len(self.sources) <= MAX_DRAWN_SOURCES else (POOLED,)

    @property
    def pooled(self) -> tuple[RuleStats, ...]:
        """Statistics of each rule over all sources, in their order."""
        return self.of_source(POOLED)

    @property
    def num_pairs(self) -> int:
        """Pairs of a prompt and two responses."""
        return max((rule.num_pairs_total for rule in self.pooled), default=0)

    @property
    def num_ratings(self) -> int:
        """Ratings that are not null."""
        return sum(rule.num_ratings for rule in self.pooled)

    @property
    def num_nulls(self) -> int:
        """Null ratings."""
        return sum(rule.num_unparsed for rule in self.pooled)

    def source_name(self, source: str) -> str:
        """What the report calls a source; if there is only one, all together are called so."""
        single = _single_sources(self.analysis)
        if source == POOLED and len(single) != 1:
            return "all sources"
        return printable(source if source != POOLED else single[0])

    def of_source(self, source: str) -> tuple[RuleStats, ...]:
        """Statistics of the rules of one source."""
        return tuple(rule for rule in self.analysis.rules if rule.source == source)

    def intervals(self, source: str) -> tuple[RuleInterval, ...]:
        """The bootstrap intervals of these rules."""
        return tuple(row for row in self.analysis.intervals if row.source == source)

    def correlations(self, source: str) -> tuple[Correlation, ...]:
        """The correlations of a source."""
        return tuple(row for row in self.analysis.correlation if row.source == source)

    def verdicts(self, source: str) -> tuple[Verdict, ...]:
        """What is to be said of the paper's claim in a source."""
        return tuple(row for row in self.analysis.verdicts if row.source == source)

    def place(self, rule_id: str) -> int:
        """A rule's place in the set, from 0 as the paper counts: what figures call it."""
        return list(self.titles).index(rule_id)

    def words(self, rule_id: str) -> str:
        """A rule's place and title."""
        return f"{self.place(rule_id)} · {self.titles[rule_id]}"


def gather(
    ratings: str | Path | Ratings | Any, *, on_step: Callable[[str], None] = lambda _: None
) -> Findings:
    """Everything a report says about some ratings.

    What these ratings cannot give (weights of a rule without a rating, say) is `Missing` with its
    reason. Memory is that of all ratings side by side, 16 bytes a pair and rule, about three times.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`.
        on_step: Called with what is being done.

    Raises:
        InputError: Not a ratings table: which file, column and value, and what was expected.
    """
    source = open_ratings(ratings)
    on_step("measuring rules")
    notes = []
    try:
        analysis = analyze(source, by_source=True)
    except InputError as error:  # a source takes the name of all; any other error comes again
        analysis = analyze(source)
        notes = [f"sources are not told apart: {printable(error)}"]
    notes += analysis.notes
    rule_ids = tuple(rule.rule_id for rule in analysis.rules if rule.source == POOLED)
    comparison: SchemeComparison | Missing
    swept: TauSweep | Missing
    with open_warehouse(source) as warehouse:
        on_step("reading pairs")
        evidence = _attempt(partial(evidence_of, warehouse, source))
        if isinstance(evidence, Missing):
            pairs = read_pair_ratings(warehouse, rule_ids=rule_ids)
            comparison, swept, enough = evidence, evidence, None
        else:
            pairs = evidence.read_pairs()
            on_step("comparing weighting schemes")
            comparison = compare_schemes_on(evidence, options=SchemeOptions())
            swept = sweep_tau(evidence, taus=_TAUS)
            notes += [*comparison.notes, *swept.notes]
            on_step("drawing samples of pairs")
            enough = sentence(ratings_needed(pairs))
    sources = _single_sources(analysis)
    if len(sources) >= MAX_DRAWN_SOURCES:
        notes.append(f"{counted(len(sources), 'source')}: each in the tables, together in drawings")
    provenance = provenance_of(source, sources=sources)
    titles = {one: printable(provenance.titles.get(one) or one) for one in rule_ids}
    pooled = tuple(rule for rule in analysis.rules if rule.source == POOLED)
    label = "ratings" if source.table is not None else Path(source.label).resolve().name
    return Findings(
        label=printable(label),
        titles=titles,
        analysis=analysis,
        pairs=pairs,
        comparison=comparison,
        sweep=swept,
        people=rules_and_people(source, titles, pooled),
        enough=enough,
        benchmarks=_benchmarks(source.study),
        provenance=provenance,
        notes=[sentence(note) for note in dict.fromkeys(notes)],
    )


def _single_sources(analysis: Analysis) -> tuple[str, ...]:
    """The names of the data sets, in their order."""
    return tuple(dict.fromkeys(rule.source for rule in analysis.rules if rule.source != POOLED))


def _benchmarks(study: Study | None) -> dict[str, BenchmarkTable | Missing]:
    """The benchmark tables of the study that the ratings lie in."""
    folders = table_folders(study.path) if study else ()
    tables = [_attempt(partial(read_table, folder)) for folder in folders]
    shown = [one for one in tables if isinstance(one, Missing) or one.own_rows]
    return {f"{BENCHMARK_FIGURE}{place}": one for place, one in enumerate(shown, start=1)}


def _attempt(find: Callable[[], Found]) -> Found | Missing:
    """What is found, or the reason why these ratings cannot give it."""
    try:
        return find()
    except InputError as error:
        return Missing(sentence(error))
