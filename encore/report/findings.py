"""Everything the report says, gathered before a line of it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from encore.analysis.analyze import analyze
from encore.analysis.statistics import POOLED
from encore.benchmarks.table import BenchmarkTable, read_table, table_folders
from encore.data.study import Study
from encore.errors import InputError
from encore.evidence.ratings_needed import ratings_needed
from encore.report.drawing import Missing
from encore.report.provenance import Provenance, provenance_of, study_of
from encore.report.words import count, printable, sentence
from encore.warehouse import (
    PairRatings,
    Ratings,
    Warehouse,
    open_ratings,
    open_warehouse,
    read_pair_ratings,
)
from encore.weighting.scheme import Evidence, SchemeOptions
from encore.weighting.scheme_comparison import SchemeComparison, TauSweep, compare, sweep
from encore.weighting.weigh import evidence_of

if TYPE_CHECKING:
    from encore.analysis.analyze import Analysis
    from encore.analysis.claim_verdicts import Verdict
    from encore.analysis.correlation import Correlation
    from encore.analysis.intervals import RuleInterval
    from encore.analysis.statistics import RuleStats

Found = TypeVar("Found")

#: More sources than these, the largest, are told in tables and not drawn.
MAX_DRAWN_SOURCES = 6
#: Names of the figures of benchmark tables begin like this; a number follows.
BENCHMARK_FIGURE = "benchmark-"
#: Above this many different ratings over all rules, reading them one by one would fill memory.
_MAX_LEVELS = 1_000_000
#: A rule with more levels than the first is counted in as many bins as the second.
MAX_BARS, _NUM_BINS = 60, 50
#: Dense enough for a smooth line, from one rule alone to nearly uniform.
_TAUS = (
    *(float(f"{step}e{power}") for power in range(-2, 2) for step in (1, 1.5, 2, 3, 4, 5, 7)),
    100.0,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RuleHistogram:
    """Ratings of one rule by level, or by bin where there are too many levels.

    ``position_L`` are levels or the middles of bins, ascending; ``bar_width`` is in units of
    rating.
    """

    rule: RuleStats
    position_L: NDArray[np.float64]
    num_ratings_L: NDArray[np.int64]
    bar_width: float

    @property
    def share_L(self) -> NDArray[np.float64]:
        """Share of the rule's ratings at each position."""
        return np.asarray(self.num_ratings_L / self.num_ratings_L.sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Findings:
    """What is known about some ratings.

    Attributes:
        ratings: What was opened.
        label: What the ratings are called: the name of a folder or file, never its place.
        titles: Of each rule by its id, in the order of the rules.
        analysis: Statistics, for every source where sources could be told apart.
        histograms: How the ratings of each rule are spread, over all sources.
        cosine_RR: Cosine of the signs of rating(chosen) − rating(rejected) of each two rules over
            pairs, shape [R, R]; NaN for a rule that never decides.
        comparison: Every weighting scheme on these ratings.
        sweep: ENCORE's weights over temperatures.
        enough: How many ratings are enough, as a sentence; None where nothing can be said.
        benchmarks: The benchmark tables of the ratings' study that have rows, by figure name.
        provenance: Where the ratings come from.
        notes: Plain sentences on what limits these figures, those of ``analysis`` included.
    """

    ratings: Ratings
    label: str
    titles: Mapping[str, str]
    analysis: Analysis
    histograms: Sequence[RuleHistogram] | Missing
    cosine_RR: NDArray[np.float64]
    comparison: SchemeComparison | Missing
    sweep: TauSweep | Missing
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
        """All sources together, then the largest, in their order."""
        pooled, *single = self.sources
        sizes = {one: max(rule.num_pairs_total for rule in self.of_source(one)) for one in single}
        largest = sorted(single, key=lambda one: -sizes[one])[:MAX_DRAWN_SOURCES]
        return (pooled, *(source for source in single if source in largest))

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

    @property
    def encore_weights(self) -> dict[str, tuple[float, float | None]]:
        """ENCORE's weight and effective weight of each rule; empty where there are none."""
        for row in () if isinstance(self.comparison, Missing) else self.comparison.rows:
            if row.vector.scheme == "encore":
                both = zip(row.vector.weights, row.effective_weights, strict=True)
                return dict(zip(row.vector.rule_ids, both, strict=True))
        return {}


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
    analysis, notes = _analyze(source)
    pooled = tuple(rule for rule in analysis.rules if rule.source == POOLED)
    rule_ids = tuple(rule.rule_id for rule in pooled)
    with open_warehouse(source) as warehouse:
        histograms = _histograms(warehouse, pooled)
        on_step("reading pairs")
        evidence = _attempt(partial(evidence_of, warehouse, source))
        if isinstance(evidence, Missing):
            pairs = read_pair_ratings(warehouse, rule_ids=rule_ids)
        else:
            pairs = evidence.read_pairs()
    on_step("comparing weighting schemes")
    comparison = _weighed(evidence, partial(compare, options=SchemeOptions()))
    swept = _weighed(evidence, partial(sweep, taus=_TAUS))
    on_step("drawing samples of pairs")
    provenance = provenance_of(source, sources=_single_sources(analysis))
    for told in (analysis, comparison, swept):
        notes += () if isinstance(told, Missing) else told.notes
    label = "ratings" if source.table is not None else Path(source.label).resolve().name
    return Findings(
        ratings=source,
        label=printable(label),
        titles={one: printable(provenance.titles.get(one) or one) for one in rule_ids},
        analysis=analysis,
        histograms=histograms,
        cosine_RR=_sign_cosines(pairs),
        comparison=comparison,
        sweep=swept,
        enough=None if isinstance(evidence, Missing) else sentence(ratings_needed(pairs).sentence),
        benchmarks=_benchmarks(study_of(source)),
        provenance=provenance,
        notes=list(dict.fromkeys(notes)),
    )


def _analyze(source: Ratings) -> tuple[Analysis, list[str]]:
    """Statistics by source where sources can be told apart, else of all, and why."""
    try:
        return analyze(source, by_source=True), []
    except InputError as error:  # a source takes the name of all; any other error comes again
        return analyze(source), [f"sources are not told apart: {printable(error)}"]


def _single_sources(analysis: Analysis) -> tuple[str, ...]:
    """The names of the data sets, in their order."""
    return tuple(dict.fromkeys(rule.source for rule in analysis.rules if rule.source != POOLED))


def _histograms(warehouse: Warehouse, rules: Sequence[RuleStats]) -> list[RuleHistogram] | Missing:
    num_levels = sum(rule.num_levels for rule in rules)
    if num_levels == 0:
        return Missing("No rule has a single rating that is not null.")
    if num_levels > _MAX_LEVELS:
        return Missing(
            f"The rules have {count(num_levels)} different ratings, too many to be counted "
            "one by one; round the ratings to see how they are spread."
        )
    levels = warehouse.query("rule_histogram")
    levels = levels.filter(pc.and_(pc.is_null(levels["source"]), pc.is_valid(levels["rating"])))
    by_rule = [(rule, levels.filter(pc.equal(levels["rule_id"], rule.rule_id))) for rule in rules]
    return [_histogram(rule, rows) for rule, rows in by_rule if rows.num_rows]


def _histogram(rule: RuleStats, rows: pa.Table) -> RuleHistogram:
    rating_L = rows["rating"].to_numpy().astype(float)
    level_L, place_L = np.unique(rating_L, return_inverse=True)
    gap = float(min(np.diff(level_L), default=0.1))
    width = min(max(0.8 * gap, 0.006), 0.08)  # to be seen, but not to touch its neighbours
    if len(level_L) > MAX_BARS:
        place_L = np.minimum((rating_L * _NUM_BINS).astype(int), _NUM_BINS - 1)
        level_L, width = (np.arange(_NUM_BINS) + 0.5) / _NUM_BINS, 1 / _NUM_BINS
    num_L = np.bincount(place_L, weights=rows["num_ratings"].to_numpy(), minlength=len(level_L))
    return RuleHistogram(
        rule=rule, position_L=level_L, num_ratings_L=num_L.astype(int), bar_width=width
    )


def _sign_cosines(pairs: PairRatings) -> NDArray[np.float64]:
    sign_PR = np.nan_to_num(np.sign(pairs.margin_PR))  # 0 where ratings tie or one is missing
    gram_RR = sign_PR.T @ sign_PR
    norm_R = np.sqrt(np.diag(gram_RR))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(gram_RR / np.outer(norm_R, norm_R), dtype=np.float64)


def _weighed(evidence: Evidence | Missing, find: Callable[[Evidence], Found]) -> Found | Missing:
    return evidence if isinstance(evidence, Missing) else _attempt(partial(find, evidence))


def _benchmarks(study: Study | None) -> dict[str, BenchmarkTable | Missing]:
    """The benchmark tables of the study that the ratings lie in."""
    tables = (
        [_attempt(partial(read_table, one)) for one in table_folders(study.path)] if study else []
    )
    shown = [one for one in tables if isinstance(one, Missing) or one.own_rows]
    return {f"{BENCHMARK_FIGURE}{place}": one for place, one in enumerate(shown, start=1)}


def _attempt(find: Callable[[], Found]) -> Found | Missing:
    """What is found, or the reason why these ratings cannot give it."""
    try:
        return find()
    except InputError as error:
        return Missing(sentence(error))
