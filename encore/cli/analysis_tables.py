"""Tables of `encore analyze`: what it found, readable at 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from encore.analysis.analyze import Analysis
from encore.analysis.paper_figures import READING, PaperComparison
from encore.analysis.statistics import ENTROPY_KINDS, POOLED, RuleStats, TiePolicy
from encore.analysis.verdicts import BIASED_POLICIES, HEADLINE_POLICIES, Verdict
from encore.cli.output import compact_table
from encore.cli.rule_tables import (
    NOTHING,
    NumberedRules,
    number,
    percent,
    short_count,
    span,
    with_margin,
)
from encore.evidence.run_comparison import Estimate, RunComparison
from encore.terminal import visible

_POLICY_NAMES: dict[TiePolicy, str] = {
    "half": "half",
    "untied": "untied",
    "strict": "strict*",
    "inclusive": ">=*",
}
_two_digits = partial(number, digits=2)
_KINDS = {"discrete": "discrete", "differential": "KDE"}
_LEGEND = (
    "H ± half of its 95 % interval; M-M: corrected for bias (Miller and Madow); KDE: differential "
    "entropy; top: the most frequent rating.\n"
    "* biased by ties: were the labels meaningless, r would lie in the null band here, away from "
    "0. Read half and untied, together."
)


def analysis_tables(analysis: Analysis) -> Group:
    """Entropy, accuracy, correlation and verdicts by source, and the paper's numbers beside ours.

    Of ratings with one source alone, only that is shown: all together are the same.
    """
    sources = list(dict.fromkeys(rule.source for rule in analysis.rules))
    sources = sources[:1] if len(sources) == 2 else sources
    rules = NumberedRules(rule.rule_id for rule in analysis.rules)
    parts: list[RenderableType] = []
    for source in sources:
        parts += _source_tables(analysis, rules, source)
    return Group(*parts, rules.legend(), Text(_LEGEND), *_paper_tables(analysis.paper), Text())


def comparison_tables(comparison: RunComparison) -> Group:
    """How far two runs agree, rule by rule."""
    rules = NumberedRules(row.rule_id for row in comparison.rules)
    columns = ("both", "equal", "r", "κ", "ΔH", "Δ half", "Δ weight")
    rows = [
        (
            row.rule_id,
            short_count(row.num_ratings),
            percent(row.agreement.value),
            _estimate(row.correlation, digits=2),
            _estimate(row.kappa, digits=2),
            _estimate(row.entropy_difference, digits=2),
            _estimate(row.accuracy_difference, digits=1, scale=100),
            _estimate(row.weight_difference, digits=3),
        )
        for row in comparison.rules
    ]
    title = "Two runs: other minus this one, ± half of the 95 % interval (half in points)"
    return Group(
        rules.table(columns, rows, title=title),
        rules.legend(),
        Text(visible(f"{comparison.sentence}.")),
        Text("κ: Cohen's kappa with squared differences; weights at tau 2."),
    )


def _source_tables(
    analysis: Analysis, numbered: NumberedRules, source: str
) -> Iterator[RenderableType]:
    where = "all sources" if source == POOLED else f"source {source}"
    rules = [rule for rule in analysis.rules if rule.source == source]
    intervals = [row for row in analysis.intervals if row.source == source]
    pairs = list(zip(rules, intervals, strict=True))
    entropy_rows = [
        (
            rule.rule_id,
            with_margin(rule.entropy_nats, interval.entropy_low, interval.entropy_high),
            number(rule.entropy_miller_madow_nats),
            number(rule.differential_entropy_nats),
            short_count(rule.num_levels),
            _top_level(rule),
            short_count(rule.num_ratings),
            short_count(rule.num_unparsed),
        )
        for rule, interval in pairs
    ]
    columns = ("H", "M-M", "KDE", "levels", "top", "ratings", "nulls")
    yield numbered.table(columns, entropy_rows, title=f"Entropy of ratings in nats, {where}")
    accuracy_rows = [
        (
            rule.rule_id,
            *(
                with_margin(
                    rule.accuracy.under(policy),
                    getattr(interval, f"{policy}_low"),
                    getattr(interval, f"{policy}_high"),
                    digits=1,
                    scale=100,
                )
                for policy in _POLICY_NAMES
            ),
            percent(rule.tie_rate),
            percent(rule.coverage),
        )
        for rule, interval in pairs
    ]
    title = f"Accuracy in % (± half of its 95 % interval) by tie policy, {where}"
    yield numbered.table((*_POLICY_NAMES.values(), "ties", "cover"), accuracy_rows, title=title)
    yield _correlation_table(analysis, source, where=where)
    yield from (
        Text(visible(_sentence(verdict)))
        for verdict in analysis.verdicts
        if verdict.source == source
    )
    yield Text()


def _correlation_table(analysis: Analysis, source: str, *, where: str) -> Table:
    by_key = {
        (row.entropy, row.accuracy): row for row in analysis.correlation if row.source == source
    }
    ordered = [
        by_key[entropy, policy]
        for entropy in ENTROPY_KINDS
        for policy in (*HEADLINE_POLICIES, *BIASED_POLICIES)
    ]
    rows = [
        (
            f"{_KINDS[row.entropy]}, {_POLICY_NAMES[row.accuracy]}",
            number(row.pearson_r),
            NOTHING if row.p_value is None else f"{row.p_value:.1g}",
            span(row.ci_low, row.ci_high, _two_digits),
            number(row.spearman_rho),
            span(row.null_low, row.null_high, _two_digits),
        )
        for row in ordered
    ]
    columns = ("entropy, accuracy", "r", "p", "95 %", "Spearman", "null band")
    title = f"Correlation of entropy (+H) with accuracy over rules, {where}"
    return compact_table(columns, rows, title=title)


def _paper_tables(comparisons: Sequence[PaperComparison]) -> Iterator[RenderableType]:
    """The paper's numbers beside ours; none where the ratings hold none of its quantities."""
    ours = [row for row in comparisons if row.our_source is not None]
    if not ours:
        return
    rows = [
        (
            row.setting,
            row.quantity,
            _paper_number(row, row.paper_value),
            row.source_in_paper.partition(" (")[0],
            *(_paper_number(row, x) for x in (row.our_value, row.our_half, row.our_untied)),
        )
        for row in ours
    ]
    columns = ("setting", "entropy", "paper", "where", "strict", "half", "untied")
    yield compact_table(columns, rows, title="The paper's correlations, and ours beside them")
    for remark in (READING, *dict.fromkeys(row.remark for row in ours if row.remark)):
        yield Text(f"Note: {remark}.")


def _sentence(verdict: Verdict) -> str:
    kind = _KINDS[verdict.entropy]
    return f"Verdict ({kind} entropy): {verdict.verdict}. In words: {verdict.reason}."


def _estimate(one: Estimate, *, digits: int, scale: float = 1) -> str:
    return with_margin(one.value, one.low, one.high, digits=digits, scale=scale)


def _top_level(rule: RuleStats) -> str:
    if rule.top_level is None or rule.top_level_share is None:
        return NOTHING
    return f"{rule.top_level:.2g} {rule.top_level_share:.0%}"


def _paper_number(row: PaperComparison, value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.0e}" if row.quantity == "p, discrete" else number(value, digits=2)
