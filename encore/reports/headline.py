"""Say the answer of a report in the few sentences that its page begins with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from encore.analysis.bootstrap import Estimate
from encore.analysis.paired_difference import mean_difference_interval
from encore.analysis.statistics import POOLED
from encore.analysis.untied_accuracy import CHANCE_OF_RANGE
from encore.core.number_text import count, counted, first_names, number, percent, points
from encore.reports.figure_drawing import Missing
from encore.weighting.composed_ratings import composed_margins, pair_credits

if TYPE_CHECKING:
    from encore.analysis.rule_verdicts import RuleAnswer, RuleVerdict
    from encore.reports.findings import Findings

#: Weights that surely differ by no more than this in half-credit accuracy are called as good.
_AS_GOOD = 0.02
#: More rules than this are not all named.
_MAX_NAMED = 4


def headline(findings: Findings) -> tuple[str, ...]:
    """Return which rules to use, what settles the others, and whether ENCORE's weights help.

    Args:
        findings: Results of the report. Without preferences the answer's own sentence stands alone.
    """
    answer = findings.answer(POOLED)
    if all(row.tie_rate is None for row in answer.rows):
        return answer.summary[:1]
    sentences = [_sentence_on_trusted_rules(answer), *_sentences_on_other_rules(answer)]
    difference = _gain_of_weights(findings)
    if difference is not None and difference.low is not None and difference.high is not None:
        sentences.append(_sentence_on_weights(difference.low, difference.high))
    return tuple(sentences)


def _sentence_on_trusted_rules(answer: RuleAnswer) -> str:
    trusted = [row for row in answer.rows if row.verdict == "trust"]
    total = len(answer.rows)
    if not trusted:
        return f"Trust none of the {counted(total, 'rule')}."
    where = ", where they apply" if any((row.applies or 1) < 1 for row in trusted) else ""
    if len(trusted) == total:
        return f"Use all {count(total)} rules{where}." if total > 1 else f"Use the one rule{where}."
    names = f": {_numbers(trusted)}" if len(trusted) <= 2 else ""
    return f"Use {count(len(trusted))} of the {count(total)} rules{where}{names}."


def _sentences_on_other_rules(answer: RuleAnswer) -> Iterator[str]:
    rows_by_verdict: dict[str, list[RuleVerdict]] = {}
    for row in sorted(answer.rows, key=lambda row: row.number):
        rows_by_verdict.setdefault(row.verdict, []).append(row)
    for verdict, one_rule, several_rules in (
        ("against", "sides against people", "side against people"),
        ("double", "says what another rule says", "say what other rules say"),
        ("says little", "says little: it nearly always ties", "say little: they nearly always tie"),
        ("sources differ", "differs between sources", "differ between sources"),
    ):
        if rows := rows_by_verdict.get(verdict):
            yield f"{_subject(rows)} {several_rules if len(rows) > 1 else one_rule}."
    undecided = rows_by_verdict.get("undecided", [])
    if unrated := [row for row in undecided if row.untied.value is None]:
        yield f"{_subject(unrated)} {'have' if len(unrated) > 1 else 'has'} no pair to go by."
    if open_rules := [row for row in undecided if row.untied.value is not None]:
        yield _sentence_on_undecided_rules(open_rules)


def _sentence_on_undecided_rules(rows: Sequence[RuleVerdict]) -> str:
    """Return how many more pairs decide on a rule or two, or on the first of several."""
    chance = f"({percent(CHANCE_OF_RANGE, digits=0)} chance)"
    if len(rows) <= 2:
        needs = "; rule ".join(f"{row.number} needs {_more_pairs(row)}" for row in rows)
        return f"Rule {needs} {chance}."
    first = min(rows, key=lambda row: row.num_more_pairs_low or np.inf)
    return (
        f"{_subject(rows)} are undecided; the first to be decided, rule {first.number}, needs "
        f"{_more_pairs(first)} {chance}."
    )


def _more_pairs(row: RuleVerdict) -> str:
    low, high = (
        None if end is None else count(int(float(f"{end:.2g}")))
        for end in (row.num_more_pairs_low, row.num_more_pairs_high)
    )
    if low is None:
        return "more than a million more pairs, or is never decided"
    return f"at least {low} more pairs" if high is None else f"{low} to {high} more pairs"


def _gain_of_weights(findings: Findings) -> Estimate | None:
    """Return ENCORE's half-credit accuracy less that of uniform weights, over the same pairs."""
    comparison = findings.comparison
    if isinstance(comparison, Missing) or len(comparison.rule_ids) < 2:
        return None
    weights = {row.vector.scheme: row.vector.weights for row in comparison.rows}
    pairs = findings.pairs.complete()
    margin_VP = composed_margins(pairs, np.array([weights["encore"], weights["uniform"]]))
    encore_P, uniform_P = map(pair_credits, margin_VP)
    return mean_difference_interval(encore_P - uniform_P, group_N=pairs.group_P)


def _sentence_on_weights(low: float, high: float) -> str:
    """Return what the 95 % interval of ENCORE's gain over uniform weights allows to say."""
    if low > 0 or high < 0:
        nearest, farthest = sorted((abs(low), abs(high)))
        side = "better" if low > 0 else "worse"
        return (
            f"ENCORE's weights rank {side} than uniform ones here, by "
            f"{number(100 * nearest, digits=1)} to {number(100 * farthest, digits=1)} points."
        )
    if max(-low, high) <= _AS_GOOD:
        within = number(100 * max(-low, high), digits=1)
        return f"ENCORE's weights are as good as uniform ones here, to within {within} points."
    return (
        "These pairs do not tell ENCORE's weights from uniform ones: between "
        f"{points(low)} and {points(high)} points."
    )


def _subject(rows: Sequence[RuleVerdict]) -> str:
    return _numbers(rows).capitalize()


def _numbers(rows: Sequence[RuleVerdict]) -> str:
    """Return the rules by number: ``rule 4``, ``rules 2 and 4``, ``rules 1, 2, 3 and 5 more``."""
    names = [str(row.number) for row in sorted(rows, key=lambda row: row.number)]
    if len(names) > _MAX_NAMED:
        return f"rules {first_names(names, limit=3)}"
    if len(names) == 1:
        return f"rule {names[0]}"
    return f"rules {', '.join(names[:-1])} and {names[-1]}"
