"""Tables of `encore analyze`: what it found, readable at 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from encore.analysis.paper_figures import READING
from encore.analysis.statistics import ENTROPY_KINDS, POOLED
from encore.analysis.verdicts import BIASED_POLICIES, HEADLINE_POLICIES
from encore.cli.analyze import number, percent
from encore.cli.output import compact_table, visible

if TYPE_CHECKING:
    from rich.table import Table

    from encore.analysis.analyze import Analysis
    from encore.analysis.correlation import Correlation
    from encore.analysis.intervals import RuleInterval
    from encore.analysis.judge_comparison import JudgeAgreement, JudgeAnalysis, JudgeComparison
    from encore.analysis.paper_figures import PaperComparison
    from encore.analysis.statistics import EntropyKind, RuleStats, TiePolicy
    from encore.analysis.verdicts import Verdict

_NOTHING = "–"
_MAX_EXACT_COUNT = 99_999
_POLICY_NAMES: dict[TiePolicy, str] = {
    "half": "half",
    "untied": "untied",
    "strict": "strict*",
    "inclusive": ">=*",
}
_ENTROPY_LEGEND = (
    "H ± half of its 95 % interval; M-M: corrected for bias (Miller and Madow); KDE: differential "
    "entropy; top: the most frequent rating."
)
_BIAS_LEGEND = (
    "* biased by ties: were the labels meaningless, r would lie in the null band here, away from "
    "0. Read half and untied, together."
)


def source_tables(analysis: Analysis, source: str) -> Group:
    """Entropy, accuracy, correlation and verdicts of one source, or of all together."""
    rules = [rule for rule in analysis.rules if rule.source == source]
    intervals = [row for row in analysis.intervals if row.source == source]
    correlation = [row for row in analysis.correlation if row.source == source]
    verdicts = [row for row in analysis.verdicts if row.source == source]
    where = _where(source)
    return Group(
        _entropy_table(rules, intervals, where=where),
        Text(_ENTROPY_LEGEND),
        Text(),
        _accuracy_table(rules, intervals, where=where),
        _correlation_table(correlation, where=where),
        Text(_BIAS_LEGEND),
        *(Text(visible(_sentence(verdict))) for verdict in verdicts),
        Text(),
    )


def paper_table(comparisons: Sequence[PaperComparison]) -> Group | None:
    """The paper's numbers beside ours; None where the ratings hold none of its quantities."""
    ours = [row for row in comparisons if row.our_source is not None]
    if not ours:
        return None
    columns = ("setting", "entropy", "paper", "where", "strict", "half", "untied")
    rows = [
        (
            row.setting,
            row.quantity,
            _paper_number(row, row.paper_value),
            row.source_in_paper.partition(" (")[0],
            _paper_number(row, row.our_value),
            _paper_number(row, row.our_half),
            _paper_number(row, row.our_untied),
        )
        for row in ours
    ]
    table = compact_table(columns, rows, title="The paper's correlations, and ours beside them")
    remarks = (READING, *dict.fromkeys(row.remark for row in ours if row.remark))
    return Group(table, *(Text(f"Note: {remark}.") for remark in remarks), Text())


def judge_tables(comparison: JudgeComparison) -> Group:
    """Entropy and accuracy of each rule by judge, verdicts, and how far the judges agree."""
    short = {one.judge: f"J{place}" for place, one in enumerate(comparison.judges, start=1)}
    names = [f"{name}: {judge}" for judge, name in short.items()]
    verdicts = [
        f"{short[one.judge]}, {_where(verdict.source)}: {_sentence(verdict)}"
        for one in comparison.judges
        for verdict in one.analysis.verdicts
    ]
    found = {source for one in comparison.judges for source in one.analysis.sources}
    sources = sorted(found, key=lambda source: (source == POOLED, source))
    return Group(
        Text(visible(f"Judges {'; '.join(names)}")),
        *(_rules_by_judge(comparison.judges, short, source=source) for source in sources),
        *(Text(visible(verdict)) for verdict in verdicts),
        Text(),
        _agreement_table(comparison.agreement, short),
    )


# --- one source -----------------------------------------------------------------------------------


def _entropy_table(
    rules: Sequence[RuleStats], intervals: Sequence[RuleInterval], *, where: str
) -> Table:
    columns = ("rule", "H", "M-M", "KDE", "levels", "top", "ratings", "nulls")
    rows = [
        (
            rule.rule_id,
            _with_margin(rule.entropy_nats, interval.entropy_low, interval.entropy_high, digits=3),
            number(rule.entropy_miller_madow_nats),
            number(rule.differential_entropy_nats),
            _count(rule.num_levels),
            _top_level(rule),
            _count(rule.num_ratings),
            _count(rule.num_unparsed),
        )
        for rule, interval in zip(rules, intervals, strict=True)
    ]
    return compact_table(columns, rows, title=f"Entropy of ratings in nats, {where}")


def _accuracy_table(
    rules: Sequence[RuleStats], intervals: Sequence[RuleInterval], *, where: str
) -> Table:
    columns = ("rule", *_POLICY_NAMES.values(), "ties", "cover")
    rows = [
        (
            rule.rule_id,
            _percent_with_margin(rule.accuracy.half, interval.half_low, interval.half_high),
            _percent_with_margin(rule.accuracy.untied, interval.untied_low, interval.untied_high),
            _percent_with_margin(rule.accuracy.strict, interval.strict_low, interval.strict_high),
            _percent_with_margin(
                rule.accuracy.inclusive, interval.inclusive_low, interval.inclusive_high
            ),
            percent(rule.tie_rate),
            percent(rule.coverage),
        )
        for rule, interval in zip(rules, intervals, strict=True)
    ]
    title = f"Accuracy in % (± half of its 95 % interval) by tie policy, {where}"
    return compact_table(columns, rows, title=title)


def _correlation_table(correlation: Sequence[Correlation], *, where: str) -> Table:
    columns = ("entropy, accuracy", "r", "p", "95 %", "Spearman", "null band")
    by_key = {(row.entropy, row.accuracy): row for row in correlation}
    ordered = [
        by_key[entropy, policy]
        for entropy in ENTROPY_KINDS
        for policy in (*HEADLINE_POLICIES, *BIASED_POLICIES)
    ]
    rows = [
        (
            f"{_kind(row.entropy)}, {_POLICY_NAMES[row.accuracy]}",
            number(row.pearson_r),
            _NOTHING if row.p_value is None else f"{row.p_value:.1g}",
            _interval(row.ci_low, row.ci_high, digits=2),
            number(row.spearman_rho),
            _interval(row.null_low, row.null_high, digits=2),
        )
        for row in ordered
    ]
    title = f"Correlation of entropy (+H) with accuracy over rules, {where}"
    return compact_table(columns, rows, title=title)


def _sentence(verdict: Verdict) -> str:
    kind = _kind(verdict.entropy)
    return f"Verdict ({kind} entropy): {verdict.verdict}. In words: {verdict.reason}."


# --- several judges -------------------------------------------------------------------------------


def _rules_by_judge(
    judges: Sequence[JudgeAnalysis], short: dict[str, str], *, source: str
) -> Table:
    names = ("H", "half", "untied")
    columns = ("rule", *(f"{name} {judge}" for name in names for judge in short.values()))
    rules = [
        {rule.rule_id: rule for rule in one.analysis.rules if rule.source == source}
        for one in judges
    ]
    rule_ids = dict.fromkeys(rule_id for by_id in rules for rule_id in by_id)
    rows = [
        (
            rule_id,
            *(number(found.entropy_nats) if found else _NOTHING for found in of_judges),
            *(percent(found.accuracy.half) if found else _NOTHING for found in of_judges),
            *(percent(found.accuracy.untied) if found else _NOTHING for found in of_judges),
        )
        for rule_id in rule_ids
        for of_judges in [[by_id.get(rule_id) for by_id in rules]]
    ]
    title = f"Entropy H in nats and accuracy by judge, {_where(source)}"
    return compact_table(columns, rows, title=title)


def _agreement_table(rows: Sequence[JudgeAgreement], short: dict[str, str]) -> Table:
    columns = ("rule", "judges", "both", "equal", "|diff|", "κ", "κ²", "same order")
    cells = [
        (
            row.rule_id,
            f"{short[row.judge]} {short[row.other_judge]}",
            _count(row.num_ratings),
            percent(row.agreement),
            number(row.mean_absolute_difference),
            number(row.kappa, digits=2),
            number(row.weighted_kappa, digits=2),
            percent(row.same_preference),
        )
        for row in rows
    ]
    title = (
        "Agreement of judges (κ: Cohen's kappa; κ²: with squared differences; same order: pairs "
        "ranked alike)"
    )
    return compact_table(columns, cells, title=title)


# --- cells ----------------------------------------------------------------------------------------


def _where(source: str) -> str:
    return "all sources" if source == POOLED else f"source {source}"


def _kind(entropy: EntropyKind) -> str:
    return "KDE" if entropy == "differential" else entropy


def _interval(low: float | None, high: float | None, *, digits: int) -> str:
    return _NOTHING if low is None or high is None else f"{low:.{digits}f}…{high:.{digits}f}"


def _with_margin(value: float | None, low: float | None, high: float | None, *, digits: int) -> str:
    if value is None or low is None or high is None:
        return number(value, digits=digits)
    return f"{value:.{digits}f} ±{(high - low) / 2:.{digits}f}"


def _percent_with_margin(share: float | None, low: float | None, high: float | None) -> str:
    percents = [None if value is None else 100 * value for value in (share, low, high)]
    return _with_margin(*percents, digits=1)


def _top_level(rule: RuleStats) -> str:
    if rule.top_level is None or rule.top_level_share is None:
        return _NOTHING
    return f"{rule.top_level:.2g} {rule.top_level_share:.0%}"


def _count(number_of: int) -> str:
    """Exact up to five digits, then in thousands or millions."""
    if number_of <= _MAX_EXACT_COUNT:
        return str(number_of)
    return f"{number_of / 1e3:.0f}K" if number_of < 1e6 else f"{number_of / 1e6:.1f}M"


def _paper_number(row: PaperComparison, value: float | None) -> str:
    if value is None:
        return _NOTHING
    return f"{value:.0e}" if row.quantity == "p, discrete" else f"{value:.2f}"
