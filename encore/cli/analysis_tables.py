"""Tables of `encore analyze`: what it found, readable at 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from rich.console import RenderableType
from rich.text import Text

from encore.analysis.analyze import Analysis
from encore.analysis.correlation import Correlation
from encore.analysis.paper_figures import READING, PaperComparison
from encore.analysis.statistics import POOLED, RuleStats, TiePolicy
from encore.cli.output import (
    NOTHING,
    Cells,
    NumberedRules,
    number,
    percent,
    record_table,
    span,
    with_margin,
)
from encore.evidence.run_comparison import Estimate, RunComparison
from encore.terminal import visible

#: In the order of the tables: the two that make the headline, then the two that ties bias.
_POLICY_NAMES: dict[TiePolicy, str] = {
    "half": "half",
    "untied": "untied",
    "strict": "strict*",
    "inclusive": ">=*",
}
_KINDS = {"discrete": "discrete", "differential": "KDE"}
_LEGEND = (
    "H ± half of its 95 % interval; M-M: corrected for bias (Miller and Madow); KDE: differential "
    "entropy; top: the most frequent rating.\n"
    "* biased by ties: were the labels meaningless, r would lie in the null band here, away from "
    "0. Read half and untied, together."
)
_two_digits = partial(number, digits=2)


def analysis_tables(analysis: Analysis) -> Iterator[RenderableType]:
    """Entropy, accuracy, correlation and verdicts by source, and the paper's numbers beside ours.

    Of ratings with one source alone, only that is shown: all together are the same.
    """
    sources = list(dict.fromkeys(rule.source for rule in analysis.rules))
    rules = NumberedRules(rule.rule_id for rule in analysis.rules)
    for source in sources[:1] if len(sources) == 2 else sources:
        yield from _source_tables(analysis, rules, source)
    yield rules.legend()
    yield Text(_LEGEND)
    yield from _paper_tables([row for row in analysis.paper if row.our_source is not None])
    yield ""


def comparison_tables(comparison: RunComparison) -> Iterator[RenderableType]:
    """How far two runs agree, rule by rule."""

    def shown(one: Estimate, *, digits: int = 2, scale: float = 1) -> str:
        return with_margin(one.value, one.low, one.high, digits=digits, scale=scale)

    rules = NumberedRules(row.rule_id for row in comparison.rules)
    cells: Cells = {
        "both": lambda row: f"{row.num_ratings:,}",
        "equal": lambda row: percent(row.agreement.value),
        "r": lambda row: shown(row.correlation),
        "κ": lambda row: shown(row.kappa),
        "ΔH": lambda row: shown(row.entropy_difference),
        "Δ half": lambda row: shown(row.accuracy_difference, digits=1, scale=100),
        "Δ weight": lambda row: shown(row.weight_difference, digits=3),
    }
    title = "Two runs: other minus this one, ± half of the 95 % interval (half in points)"
    yield rules.table(comparison.rules, cells, title=title)
    yield rules.legend()
    yield Text(visible(f"{comparison.sentence}."))
    yield Text("κ: Cohen's kappa with squared differences; weights at tau 2.")


def _source_tables(
    analysis: Analysis, numbered: NumberedRules, source: str
) -> Iterator[RenderableType]:
    where = "all sources" if source == POOLED else f"source {source}"
    rules = [rule for rule in analysis.rules if rule.source == source]
    interval_of = {row.rule_id: row for row in analysis.intervals if row.source == source}

    def shown(
        rule: RuleStats, name: str, value: float | None, *, digits: int = 3, scale: float = 1
    ) -> str:
        ends = interval_of[rule.rule_id]
        low, high = getattr(ends, f"{name}_low"), getattr(ends, f"{name}_high")
        return with_margin(value, low, high, digits=digits, scale=scale)

    def accuracy(policy: TiePolicy, rule: RuleStats) -> str:
        return shown(rule, policy, rule.accuracy.under(policy), digits=1, scale=100)

    entropies: Cells = {
        "H": lambda rule: shown(rule, "entropy", rule.entropy_nats),
        "M-M": lambda rule: number(rule.entropy_miller_madow_nats),
        "KDE": lambda rule: number(rule.differential_entropy_nats),
        "levels": lambda rule: f"{rule.num_levels:,}",
        "top": _top_level,
        "ratings": lambda rule: f"{rule.num_ratings:,}",
        "nulls": lambda rule: f"{rule.num_unparsed:,}",
    }
    yield numbered.table(rules, entropies, title=f"Entropy of ratings in nats, {where}")
    accuracies: Cells = {
        **{name: partial(accuracy, policy) for policy, name in _POLICY_NAMES.items()},
        "ties": lambda rule: percent(rule.tie_rate),
        "cover": lambda rule: percent(rule.coverage),
    }
    title = f"Accuracy in % (± half of its 95 % interval) by tie policy, {where}"
    yield numbered.table(rules, accuracies, title=title)
    yield _correlation_table([row for row in analysis.correlation if row.source == source], where)
    for one in analysis.verdicts:
        if one.source == source:
            verdict = f"Verdict ({_KINDS[one.entropy]} entropy): {one.verdict}."
            yield Text(visible(f"{verdict} In words: {one.reason}."))
    yield ""


def _top_level(rule: RuleStats) -> str:
    is_known = rule.top_level is not None and rule.top_level_share is not None
    return f"{rule.top_level:.2g} {rule.top_level_share:.0%}" if is_known else NOTHING


def _correlation_table(rows: list[Correlation], where: str) -> RenderableType:
    places = [*_KINDS, *_POLICY_NAMES]
    rows.sort(key=lambda row: (places.index(row.entropy), places.index(row.accuracy)))
    correlations: Cells = {
        "entropy, accuracy": lambda r: f"{_KINDS[r.entropy]}, {_POLICY_NAMES[r.accuracy]}",
        "r": lambda row: number(row.pearson_r),
        "p": lambda row: NOTHING if row.p_value is None else f"{row.p_value:.1g}",
        "95 %": lambda row: span(row.ci_low, row.ci_high, _two_digits),
        "Spearman": lambda row: number(row.spearman_rho),
        "null band": lambda row: span(row.null_low, row.null_high, _two_digits),
    }
    title = f"Correlation of entropy (+H) with accuracy over rules, {where}"
    return record_table(rows, correlations, title=title)


def _paper_tables(rows: Sequence[PaperComparison]) -> Iterator[RenderableType]:
    """The paper's numbers beside ours; none where the ratings hold none of its quantities."""

    def figure(row: PaperComparison, value: float | None) -> str:
        is_p = value is not None and row.quantity == "p, discrete"
        return f"{value:.0e}" if is_p else _two_digits(value)

    if not rows:
        return
    cells: Cells = {
        "setting": lambda row: row.setting,
        "entropy": lambda row: row.quantity,
        "paper": lambda row: figure(row, row.paper_value),
        "where": lambda row: row.source_in_paper.partition(" (")[0],
        "strict": lambda row: figure(row, row.our_value),
        "half": lambda row: figure(row, row.our_half),
        "untied": lambda row: figure(row, row.our_untied),
    }
    yield record_table(rows, cells, title="The paper's correlations, and ours beside them")
    for remark in (READING, *dict.fromkeys(row.remark for row in rows if row.remark)):
        yield Text(f"Note: {remark}.")
