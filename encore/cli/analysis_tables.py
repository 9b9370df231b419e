"""Tables of `encore analyze`, readable at 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from encore.analysis.all_rules_check import AllRulesCheck
from encore.analysis.analyze import Analysis
from encore.analysis.bootstrap import Estimate
from encore.analysis.effective_rules import EffectiveRules
from encore.analysis.rule_verdicts import RuleAnswer, RuleVerdict
from encore.analysis.run_comparison import RunComparison
from encore.analysis.statistics import POOLED, RuleStats
from encore.analysis.variance_shares import VarianceShares
from encore.cli.output import (
    Renderable,
    TableColumns,
    percent_of,
    record_table,
    rule_legend,
    rule_table,
    span,
    span_of,
)
from encore.core.number_text import NONE, number, sentence, significant
from encore.core.terminal import out
from encore.warehouse import read_pairs_of
from encore.weighting.weight_error import ratings_needed

_POLICY_NAMES = {"half": "half", "untied": "untied", "strict": "strict*", "inclusive": ">=*"}
_KINDS = {"discrete": "discrete", "differential": "KDE"}
_LEGEND = (
    "H ± half of its 95 % interval; M-M: corrected for bias (Miller and Madow); KDE: differential "
    "entropy.\n"
    "* biased by ties: were the labels meaningless, r would lie in the null band here, away from "
    "0. Read half and untied, together."
)
_OTHERS = (
    "others: agrees with the other rules, the mean correlation of its margins with theirs; it is "
    "no accuracy."
)
#: With more ratings than these, reading them side by side for one sentence would take too long.
_MAX_RATINGS = 2_000_000


def analysis_tables(analysis: Analysis, *, has_details: bool) -> Iterator[Renderable]:
    """Yield the verdicts on rules, and in a line what the ratings say on the paper's claim.

    Ratings of a single source are shown once: the figures of all sources would repeat them.

    Args:
        analysis: The analysis.
        has_details: True adds tables of variance, entropy, accuracy and correlation, the figures of
            the paper's claim by source, and how many ratings are enough.
    """
    sources = [answer.source for answer in analysis.answers]
    sources = sources[:1] if len(sources) == 2 else sources
    has_noise = any(row.judge_noise.value is not None for row in analysis.variance)
    if has_noise:
        yield from variance_tables(analysis)
    yield from answer_tables(analysis.answers)
    yield from applicability_tables(analysis)
    if has_details and not has_noise:
        yield from variance_tables(analysis)
    if has_details:
        for source in sources:
            yield from _source_tables(analysis, analysis.rule_ids, source)
            yield from _claim_sentences(analysis, source)
            yield ""
        yield rule_legend(analysis.rule_ids)
        yield _LEGEND
    else:
        if not has_noise:
            yield textwrap.fill(effective_sentence(analysis.effective_rules[-1]), out.width)
        yield textwrap.fill(_claim_line(analysis), out.width)
        yield ""
        return
    yield ""
    counts = [rule.num_ratings for rule in analysis.rules if rule.source == POOLED]
    if 0 not in counts and sum(counts) <= _MAX_RATINGS:
        needed = ratings_needed(read_pairs_of(analysis.ratings.by_level))
        yield f"How many ratings are enough? {sentence(needed)}\n"


def comparison_tables(
    comparison: RunComparison, *, rule_ids: Sequence[str]
) -> Iterator[Renderable]:
    """Yield tables of the agreement of two runs, rule by rule.

    Args:
        comparison: The comparison, of rules that both runs have.
        rule_ids: All rules of the first run; their order gives their numbers.
    """
    columns: TableColumns = {
        "both": "num_ratings",
        "equal": percent_of("agreement.value"),
        "r": lambda row: with_margin(row.correlation, digits=2),
        "κ": lambda row: with_margin(row.kappa, digits=2),
        "ΔH": lambda row: with_margin(row.entropy_difference, digits=2),
        "Δ half": lambda row: with_margin(row.accuracy_difference, digits=1, scale=100),
    }
    yield f"{comparison.sentence}.\n"
    yield rule_table(rule_ids, comparison.rules, columns, title="Δ: other run minus this one")
    columns = {
        "Δ weight": lambda row: with_margin(row.weight_difference),
        "ties": percent_of("tie_rate.value"),
        "Δ ties": lambda row: with_margin(row.tie_difference, digits=1, scale=100),
    }
    yield rule_table(rule_ids, comparison.rules, columns, title="Weights and ties")
    yield rule_legend(rule_ids)
    yield (
        "±: half of the 95 % interval; Δ half, Δ ties: in percentage points; κ: Cohen's kappa with "
        "squared differences; weights at tau 2."
    )


def all_rules_tables(check: AllRulesCheck, *, rule_ids: Sequence[str]) -> Iterator[Renderable]:
    """Yield what asking for all rules at once does to the ratings, rule by rule.

    Args:
        check: The comparison with one rule a call, and the effects of the position.
        rule_ids: All rules; their order gives their numbers.
    """
    *positions, position_of_all = check.positions or (None,)
    columns: TableColumns = {}
    if check.comparison is None:
        yield (
            "All rules were asked at once, and no run of this study asks for one rule a call: "
            "`encore rate --layout all-rules --check 200` makes one to compare with."
        )
    else:
        title = "All rules at once minus one rule a call, ± half of the 95 % interval"
        columns = {
            "both": "num_ratings",
            "Δ mean": lambda row: with_margin(row.mean_difference),
            "ΔH": lambda row: with_margin(row.entropy_difference, digits=2),
            "Δ half": lambda row: with_margin(row.accuracy_difference, digits=1, scale=100),
            "Δ weight": lambda row: with_margin(row.weight_difference),
        }
        yield rule_table(rule_ids, check.comparison.rules, columns, title=title)
        yield f"{check.comparison.sentence}. Run of one rule a call: {check.run_key}."
        yield from check.comparison.notes
    if position_of_all is None:
        return
    columns = {
        "ratings": "num_ratings",
        "last minus first": lambda row: with_margin(row.last_minus_first),
    }
    title = "Effect of a rule's position in the list on its rating, ± half of the 95 % interval"
    yield rule_table(rule_ids, positions, columns, title=title)
    effect = position_of_all.last_minus_first
    low_to_high = span(effect.low, effect.high, partial(number, digits=3))
    yield f"All rules, last minus first: {number(effect.value, digits=3)} ({low_to_high})\n"


def answer_tables(
    answers: Sequence[RuleAnswer], *, rule_id: str | None = None
) -> Iterator[Renderable]:
    """Yield the verdicts on the rules of all sources together, then a table for each source.

    Args:
        answers: Verdicts by source, all sources together last.
        rule_id: The one rule whose verdicts are shown, with the reason; None for all rules.
    """
    *answers_by_source, pooled = answers
    for answer in (pooled, *(answers_by_source if len(answers_by_source) > 1 else ())):
        columns: TableColumns = {
            "rule": "rule_id",
            "#": "number",
            "verdict": partial(_verdict, numbers={row.rule_id: row.number for row in answer.rows}),
            "untied": percent_of("untied.value"),
            "interval": lambda row: span(row.untied.low, row.untied.high),
            "ties": percent_of("tie_rate"),
            "weight": "weight",
            "others": lambda row: number(row.agrees_with_others.value, digits=2),
        }
        if any(row.applies is not None for row in answer.rows):
            columns = {**columns, "applies": percent_of("applies")}
        yield sentence(f"{_subject(answer.source)}: {answer.pairs_and_prompts}")
        title = f"Which rules to trust, {_subject(answer.source)}"
        rows = [row for row in answer.rows if rule_id in (None, row.rule_id)]
        if all(row.tie_rate is None for row in answer.rows):  # no pair has two ratings
            yield "\n".join(textwrap.fill(line, out.width) for line in answer.summary)
            yield ""
            continue
        yield record_table(rows, columns, title=title)
        if answer is pooled:
            yield textwrap.fill(_OTHERS, out.width)
            reasons: TableColumns = {
                "#": "number",
                "reason": lambda row: sentence(row.reason_and_caveat),
                "what would settle it": lambda row: row.remedy and sentence(row.remedy),
            }
            yield record_table(
                [
                    row
                    for row in rows
                    if row.remedy or row.caveat or rule_id or (row.applies or 1) < 1
                ],
                reasons,
            )
            if rule_id is None:
                yield "\n".join(textwrap.fill(line, out.width) for line in pooled.summary)
                yield ""


def applicability_tables(analysis: Analysis) -> Iterator[Renderable]:
    """Yield how often each rule applies, if a judge said of one that it does not, by source."""
    sources = [*dict.fromkeys(row.source for row in analysis.applicability)]
    for source in sources[:1] if len(sources) == 2 else sources:
        columns: TableColumns = {
            "n/a": "num_not_applicable",
            "applies": percent_of("applies.value"),
            "interval": lambda row: span(row.applies.low, row.applies.high),
            "to chosen": percent_of("applies_to_chosen"),
            "to rejected": percent_of("applies_to_rejected"),
            "to both": percent_of("applies_to_both"),
        }
        rows = [row for row in analysis.applicability if row.source == source]
        title = f"How often each rule applies, {_subject(source)}"
        yield rule_table(analysis.rule_ids, rows, columns, title=title)


def _verdict(row: RuleVerdict, *, numbers: Mapping[str, int]) -> str:
    """Return a verdict, of a double with the number of the rule that it doubles."""
    return f"double of {numbers[row.double_of]}" if row.double_of else row.verdict


def _subject(source: str) -> str:
    return "all sources" if source == POOLED else f"source {source}"


def variance_tables(analysis: Analysis) -> Iterator[Renderable]:
    """Yield what the ratings of each rule are made of, and how many rules all are worth."""

    def in_percent(share: float | None) -> str:
        return number(None if share is None else 100 * share, digits=1)

    def share(name: str, row: VarianceShares) -> str:
        estimate = getattr(row, name)
        if estimate.value is None:
            return NONE
        interval = "" if estimate.low is None else span(estimate.low, estimate.high, in_percent)
        return f"{in_percent(estimate.value)} {interval}".rstrip()

    has_noise = any(row.judge_noise.value is not None for row in analysis.variance)
    columns: TableColumns = {
        "pairs": "num_pairs",
        "variance": "variance",
        "prompts": partial(share, "between_prompts"),
        "responses": partial(share, "between_responses"),
        **({"noise": partial(share, "judge_noise")} if has_noise else {}),
    }
    sources = [row.source for row in analysis.effective_rules]
    for worth in analysis.effective_rules[:1] if len(sources) == 2 else analysis.effective_rules:
        rows = [row for row in analysis.variance if row.source == worth.source]
        title = f"Shares of the ratings' variance in %, {_subject(worth.source)}"
        yield rule_table(analysis.rule_ids, rows, columns, title=title)
        yield effective_sentence(worth)
    text = "Entropy mixes these shares: a rule is spread out because prompts differ, because "
    text += "the two responses of a pair differ (chosen and rejected included), or because the "
    text += "judge is noisy."
    if not has_noise:
        text += " The share of responses contains the judge's noise; --repeat tells it apart."
    yield textwrap.fill(text, out.width)
    yield ""


def effective_sentence(worth: EffectiveRules) -> str:
    """Return how many independent rules the rules of a source are worth, as a sentence."""
    estimate = worth.effective
    if estimate.value is None:
        return "Fewer than two rules tell responses apart: no effective number of rules."
    text = number(estimate.value, digits=1)
    if estimate.low is not None and estimate.high is not None:
        text += f" ({number(estimate.low, digits=1)} to {number(estimate.high, digits=1)})"
    return f"These {worth.num_rules} rules say as much as {text} independent ones."


def _source_tables(
    analysis: Analysis, rule_ids: Sequence[str], source: str
) -> Iterator[Renderable]:
    subject = _subject(source)
    rules = [rule for rule in analysis.rules if rule.source == source]
    intervals = {row.rule_id: row for row in analysis.intervals if row.source == source}

    def accuracy(policy: str, rule: RuleStats) -> str:
        estimate = getattr(intervals[rule.rule_id], policy)
        return with_margin(estimate, digits=1, scale=100)

    entropies: TableColumns = {
        "H": lambda rule: with_margin(intervals[rule.rule_id].entropy),
        "M-M": "entropy_miller_madow_nats",
        "KDE": "differential_entropy_nats",
        "levels": "num_levels",
        "ratings": "num_ratings",
        "nulls": "num_unparsed",
    }
    yield rule_table(rule_ids, rules, entropies, title=f"Entropy of ratings in nats, {subject}")
    accuracies: dict[str, Any] = {
        name: partial(accuracy, policy) for policy, name in _POLICY_NAMES.items()
    }
    accuracies |= {"ties": percent_of("tie_rate"), "cover": percent_of("coverage")}
    title = f"Accuracy in % (± half of its 95 % interval) by tie policy, {subject}"
    yield rule_table(rule_ids, rules, accuracies, title=title)
    columns: TableColumns = {
        "entropy, accuracy": lambda r: f"{_KINDS[r.entropy]}, {_POLICY_NAMES[r.accuracy]}",
        "r": "pearson_r",
        "p": lambda row: significant(row.p_value),
        "95 %": span_of("ci", significant),
        "Spearman": "spearman_rho",
        "null band": span_of("null", significant),
    }
    correlations = [row for row in analysis.correlation if row.source == source]
    title = f"Correlation of entropy (+H) with accuracy over rules, {subject}"
    yield record_table(correlations, columns, title=title)


def _claim_line(analysis: Analysis) -> str:
    """Return the verdicts on the paper's claim over all sources, and where the figures are."""
    pooled = [verdict for verdict in analysis.verdicts if verdict.source == POOLED]
    claims = dict.fromkeys(f"{verdict.verdict} ({_KINDS[verdict.entropy]})" for verdict in pooled)
    claim = f"The paper's claim here: {', '.join(claims)}. " if claims else ""
    return f"{claim}The figures behind this: --details."


def _claim_sentences(analysis: Analysis, source: str) -> Iterator[str]:
    """Yield the verdicts on the paper's claim in a source, a sentence for each kind of entropy."""
    for verdict in analysis.verdicts:
        if verdict.source == source:
            kind = f"{_KINDS[verdict.entropy]} entropy, {_subject(source)}"
            text = f"The paper's claim ({kind}): {verdict.verdict}. {sentence(verdict.reason)}"
            yield textwrap.fill(text, out.width)


def with_margin(estimate: Estimate, *, digits: int = 3, scale: float = 1) -> str:
    """Return a figure times ``scale`` as text, with half of its interval: ``0.42 ±0.05``."""
    if estimate.value is None:
        return NONE
    text = number(scale * estimate.value, digits=digits)
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} ±{number(scale * (estimate.high - estimate.low) / 2, digits=digits)}"
