"""Gather everything the report says: statistics, schemes, convergence, origin of the ratings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from encore.analysis.analyze import analyze
from encore.analysis.statistics import POOLED, RuleStats
from encore.benchmarks.stored_tables import StoredTable, read_table, table_folders
from encore.errors import InputError
from encore.pair_ratings import PairRatings, read_pair_ratings
from encore.ratings_input import ratings_input
from encore.report.agreement import rule_agreement_of
from encore.report.chart import Missing
from encore.report.findings import Findings, named_rules
from encore.report.histograms import RuleHistogram, rule_histograms
from encore.report.provenance import provenance_of
from encore.report.words import count, printable
from encore.warehouse import Warehouse
from encore.weighting.opening import evidence_of

if TYPE_CHECKING:
    from encore.analysis.analyze import Analysis
    from encore.evidence.convergence import ConvergenceCurve
    from encore.weighting.comparison import SchemeComparison
    from encore.weighting.evidence import Evidence
    from encore.weighting.leave_one_out import LeaveOneOut
    from encore.weighting.sweep import TauSweep

Found = TypeVar("Found")

#: Above this many different ratings over all rules, reading them one by one would fill memory.
_MAX_LEVELS = 1_000_000

#: Dense enough for a smooth line, from one rule alone to nearly uniform.
_TAUS = (
    *(float(f"{step}e{power}") for power in range(-2, 2) for step in (1, 1.5, 2, 3, 4, 5, 7)),
    100.0,
)

#: Told what is being done, in a few words.
StepHook = Callable[[str], None]


def gather(
    ratings: str | Path | Any,
    *,
    run: str | None = None,
    judge: str | None = None,
    on_step: StepHook = lambda _: None,
) -> Findings:
    """Everything a report says about some ratings.

    What these ratings cannot give (weights of a rule without a rating, say) is `Missing` with its
    reason. Memory is that of all ratings side by side, 16 bytes a pair and rule, about three times.

    Args:
        ratings: As for `encore.analysis.analyze.analyze`.
        run: Which run, where there are several: a unique prefix of its key.
        judge: Which judge, where there are several.
        on_step: Told what is being done.

    Raises:
        InputError: Not a ratings table: which file, column and value, and what was expected.
    """
    source = ratings_input(ratings, run=run, judge=judge)
    on_step("measuring rules")
    analysis, notes = _analysis(ratings, run=run, judge=judge)
    pooled = tuple(rule for rule in analysis.rules if rule.source == POOLED)
    rule_ids = tuple(rule.rule_id for rule in pooled)
    with Warehouse(source) as warehouse:
        histograms = _histograms(warehouse, pooled)
        on_step("reading pairs")
        evidence = _attempt(partial(evidence_of, warehouse, source))
        pairs = (
            read_pair_ratings(warehouse, rule_ids=rule_ids)
            if isinstance(evidence, Missing)
            else evidence.read_pairs()
        )
    weighing = _weighing(evidence, on_step)
    provenance = provenance_of(source, rules=pooled, sources=_sources(analysis))
    return Findings(
        label=_label(ratings),
        rules=named_rules(rule_ids, dict(provenance.titles)),
        analysis=analysis,
        histograms=histograms,
        agreement=rule_agreement_of(pairs),
        comparison=weighing.comparison,
        sweep=weighing.sweep,
        left_out=weighing.left_out,
        convergence=_convergence(pairs, on_step),
        benchmarks=_benchmarks(evidence),
        provenance=provenance,
        notes=tuple(dict.fromkeys((*notes, *analysis.notes, *weighing.notes))),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Weighing:
    """What weighing the rules gave, or why it gave nothing."""

    comparison: SchemeComparison | Missing
    sweep: TauSweep | Missing
    left_out: LeaveOneOut | Missing

    @property
    def notes(self) -> tuple[str, ...]:
        """What limits the figures."""
        found = (self.comparison, self.sweep, self.left_out)
        return tuple(note for part in found if not isinstance(part, Missing) for note in part.notes)


def _analysis(
    ratings: str | Path | Any, *, run: str | None, judge: str | None
) -> tuple[Analysis, tuple[str, ...]]:
    """The statistics by source; without sources where one takes the name of all, and a note."""
    try:
        return analyze(ratings, by_source=True, run=run, judge=judge), ()
    except InputError as error:
        pooled = analyze(ratings, run=run, judge=judge)  # any other error comes again
        return pooled, (f"sources are not told apart: {printable(error)}",)


def _histograms(
    warehouse: Warehouse, rules: Sequence[RuleStats]
) -> tuple[RuleHistogram, ...] | Missing:
    num_levels = sum(rule.num_levels for rule in rules)
    if num_levels == 0:
        return Missing(reason="No rule has a single rating that is not null.")
    if num_levels > _MAX_LEVELS:
        return Missing(
            reason=f"The rules have {count(num_levels)} different ratings, too many to be counted "
            "one by one; round the ratings to see how they are spread."
        )
    levels = warehouse.query("rule_histogram")
    pooled = levels.filter(levels["source"].is_null())
    return rule_histograms(pooled, rule_ids=[rule.rule_id for rule in rules])


def _weighing(evidence: Evidence | Missing, on_step: StepHook) -> _Weighing:
    if isinstance(evidence, Missing):
        return _Weighing(comparison=evidence, sweep=evidence, left_out=evidence)
    from encore.weighting import load_scheme
    from encore.weighting.comparison import compare
    from encore.weighting.leave_one_out import leave_each_out
    from encore.weighting.scheme import SchemeOptions
    from encore.weighting.sweep import sweep

    options = SchemeOptions()
    assert options.tau in _TAUS  # the paper's is in the table
    on_step("comparing weighting schemes")
    return _Weighing(
        comparison=_attempt(partial(compare, evidence, options=options)),
        sweep=_attempt(partial(sweep, evidence, taus=_TAUS)),
        left_out=_attempt(
            partial(leave_each_out, evidence, scheme=load_scheme("encore"), options=options)
        ),
    )


def _convergence(pairs: PairRatings, on_step: StepHook) -> ConvergenceCurve | Missing:
    from encore.evidence.convergence import convergence_of_pairs

    on_step("drawing samples of pairs")
    return _attempt(partial(convergence_of_pairs, pairs))


def _benchmarks(evidence: Evidence | Missing) -> tuple[StoredTable | Missing, ...]:
    """The benchmark tables of the study that the ratings lie in; none for other ratings."""
    if isinstance(evidence, Missing) or evidence.study is None:
        return ()
    study = evidence.study
    found = (
        _attempt(partial(read_table, folder, study=study.path.name, has_pairs=False))
        for folder in table_folders(study.path)
    )
    return tuple(one for one in found if isinstance(one, Missing) or one.rows)


def _attempt(find: Callable[[], Found]) -> Found | Missing:
    """What is found, or the reason why these ratings cannot give it."""
    try:
        return find()
    except InputError as error:
        reason = printable(error)
        return Missing(reason=f"{reason[:1].upper()}{reason[1:]}.")


def _sources(analysis: Analysis) -> tuple[str, ...]:
    found = dict.fromkeys(rule.source for rule in analysis.rules)
    return tuple(source for source in found if source != POOLED)


def _label(ratings: str | Path | Any) -> str:
    """The name of what was given, without the place where it lies."""
    if not isinstance(ratings, str | Path):
        return "ratings"
    return printable(Path(ratings).resolve().name)
