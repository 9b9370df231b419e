"""Say of each rule whether its ratings can be trusted to rank responses as people do.

The question is asked of all rules of a source at once. Each interval of untied accuracy therefore
has the confidence 1 - 0.05 / R for R rules (Bonferroni), and is exact (Clopper and Pearson): with
meaningless labels, at most one study in twenty says *trust* or *against* of any rule, whatever the
number of untied pairs. Pairs count as independent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri

from encore.analysis.answer_options import AnswerOptions
from encore.analysis.bootstrap import Estimate
from encore.analysis.entropy import entropy_weights
from encore.analysis.statistics import RuleStats, SourceStatistics
from encore.core.number_text import count, counted, first_names, number, percent

RuleVerdictName = Literal["trust", "against", "undecided", "says little", "double"]

#: Probability, at most, of any false verdict in a source whose labels mean nothing.
ERROR_RATE = 0.05
#: Probability that the further pairs decide, if the estimate is the truth.
POWER = 0.8
#: With fewer untied pairs two rules can correlate by chance.
_MIN_UNTIED_PAIRS_OF_DOUBLE = 20
#: Verdicts that do not go with a large weight.
_NOT_TRUSTED: tuple[RuleVerdictName, ...] = ("against", "undecided", "says little")
#: A weight that differs from an equal share by less than this part of it is nearly equal.
_NEARLY_EQUAL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleVerdict:
    """Verdict on one rule in one source.

    Attributes:
        number: Number of the rule, from 1, the same in all sources.
        rule_id: The rule, as in the rule set.
        source: The data set, or `POOLED` for all together.
        verdict: "trust": the interval of untied accuracy is above 50 %; "against": below it;
            "undecided": it contains 50 %; "says little": nearly all pairs are tied; "double": its
            ratings are those of another rule that is kept.
        reason: Reason of the verdict in words, with its figures.
        remedy: Action that would settle or mend it; empty if there is nothing to do.
        untied: Accuracy over pairs without a tie, with an interval that holds for all rules of the
            source at once.
        tie_rate: Share of the fully rated pairs that are tied; None without such pairs.
        num_untied_pairs: Number of pairs with two different ratings.
        num_missing_pairs: Number of the source's pairs that lack a rating of this rule.
        num_more_pairs: For an undecided rule, the number of further pairs that decide with a
            probability of 80 % if estimate and tie rate are the true ones; None if the estimate is
            50 %, or there is none.
        double_of: The rule that is kept, for a double.
        correlation: Correlation with that rule within pairs.
        weight: ENCORE's weight of the rule in this source; None if a rule has no entropy.
    """

    number: int
    rule_id: str
    source: str
    verdict: RuleVerdictName
    reason: str
    remedy: str
    untied: Estimate
    tie_rate: float | None
    num_untied_pairs: int
    num_missing_pairs: int
    num_more_pairs: int | None = None
    double_of: str | None = None
    correlation: float | None = None
    weight: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleAnswer:
    """Answer to "which rules can I trust?" in one source.

    Attributes:
        source: The data set, or `POOLED` for all together.
        rows: Verdicts on the rules, by descending lower end of the interval, then rules without
            an interval.
        summary: Sentences on all rules together.
    """

    source: str
    rows: tuple[RuleVerdict, ...]
    summary: tuple[str, ...]


def rule_answer(
    statistics: SourceStatistics, *, rule_numbers: Mapping[str, int], options: AnswerOptions
) -> RuleAnswer:
    """Return the verdicts on the rules of a source.

    Args:
        statistics: Statistics and counts of the source.
        rule_numbers: Number of each rule, from 1.
        options: Thresholds of the verdicts, and the temperature of ENCORE's weights.
    """
    rules = statistics.rules
    entropy_R = np.array([rule.entropy_nats for rule in rules], dtype=np.float64)
    # NaN without an entropy, and then for all rules.
    weight_R = entropy_weights(entropy_R, tau=options.tau)
    verdicts = [
        replace(
            _verdict(
                statistics, index, rule_numbers[rule.rule_id], max_tie_rate=options.max_tie_rate
            ),
            weight=None if np.isnan(weight_R[index]) else float(weight_R[index]),
        )
        for index, rule in enumerate(rules)
    ]
    verdicts = _with_doubles(
        verdicts, statistics.correlation_RR, threshold=options.double_correlation
    )
    rows = sorted(verdicts, key=lambda row: 1.0 if row.untied.low is None else -row.untied.low)
    summary = tuple(_summary(verdicts))
    return RuleAnswer(source=statistics.source, rows=tuple(rows), summary=summary)


def exact_interval(hits: int, total: int, *, confidence: float) -> Estimate:
    """Return a share with its exact interval (Clopper and Pearson 1934); empty for no items.

    Args:
        hits: Number of hits.
        total: Number of items, hits or not.
        confidence: Probability, at least, that the interval contains the true share.
    """
    if not total:
        return Estimate()
    tail = (1 - confidence) / 2
    low = float(betaincinv(hits, total - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, total - hits, 1 - tail)) if hits < total else 1.0
    return Estimate(value=hits / total, low=low, high=high)


def _verdict(
    statistics: SourceStatistics, rule_index: int, rule_number: int, *, max_tie_rate: float
) -> RuleVerdict:
    """Return the verdict on a rule without regard to other rules, and without its weight."""
    rule, counts = statistics.rules[rule_index], statistics.counts
    num_wins, num_ties = int(counts.wins_R[rule_index]), int(counts.ties_R[rule_index])
    num_untied = rule.num_pairs - num_ties
    confidence = 1 - ERROR_RATE / len(statistics.rules)
    untied = exact_interval(num_wins, num_untied, confidence=confidence)
    num_more_pairs = None
    pairs = counted(num_untied, "untied pair")
    reason = f"agrees with people on {percent(untied.value)} of {pairs}"
    name: RuleVerdictName
    if rule.num_levels == 1 or (rule.tie_rate is not None and rule.tie_rate >= max_tie_rate):
        name = "says little"
        level = f"{percent(rule.top_level_share)} of its ratings are {number(rule.top_level)}"
        reason = f"{counted(num_ties, 'tie')} in {counted(rule.num_pairs, 'pair')}; {level}"
        remedy = "a finer scale or expected ratings (`--scale`, `--decode`), or another wording"
    elif untied.low is None or untied.high is None:
        name, reason = "undecided", "no pair has both responses rated"
        remedy = "ratings of both responses"
    elif untied.low > 0.5:
        name, remedy = "trust", ""
        reason += f", at least {percent(untied.low)}"
    elif untied.high < 0.5:
        name, remedy = "against", "read pairs that it gets wrong; reword it or leave it out"
        reason += f", at most {percent(untied.high)}"
    else:
        name = "undecided"
        reason = f"{pairs} do not decide"
        num_more_pairs = _num_more_pairs(rule, untied.value, confidence=confidence)
        remedy = "no number of pairs is known to decide: the estimate is 50 %"
        if num_more_pairs is not None:
            rounded = int(float(f"{num_more_pairs:.2g}"))
            remedy = f"about {count(rounded)} more pairs at this estimate"
    return RuleVerdict(
        number=rule_number,
        rule_id=rule.rule_id,
        source=statistics.source,
        verdict=name,
        reason=reason,
        remedy=remedy,
        untied=untied,
        tie_rate=rule.tie_rate,
        num_untied_pairs=num_untied,
        num_missing_pairs=rule.num_pairs_total - rule.num_pairs,
        num_more_pairs=num_more_pairs,
    )


def _num_more_pairs(rule: RuleStats, accuracy: float | None, *, confidence: float) -> int | None:
    """Return the number of further pairs that decide, at this accuracy and tie rate.

    With n untied pairs of true accuracy p, the interval leaves out 50 % with probability `POWER` if
    |p - 0.5| sqrt(n) = z / 2 + z' sqrt(p (1 - p)), with the normal quantiles z of the confidence
    and z' of the power. The exact interval needs 1 / |p - 0.5| pairs more (Fleiss's correction).
    """
    if accuracy is None or accuracy == 0.5 or rule.tie_rate is None:
        return None
    distance = abs(accuracy - 0.5)
    z_confidence, z_power = ndtri([(1 + confidence) / 2, POWER]).tolist()
    width = z_confidence / 2 + z_power * math.sqrt(accuracy * (1 - accuracy))
    num_untied: float = (width / distance) ** 2 + 1 / distance
    return max(1, math.ceil(num_untied / (1 - rule.tie_rate)) - rule.num_pairs)


def _with_doubles(
    verdicts: Sequence[RuleVerdict], correlation_RR: NDArray[np.float64], *, threshold: float
) -> list[RuleVerdict]:
    """Return the verdicts with doubles marked.

    Rules are kept by descending certainty, which is the distance of the interval from 50 %. A rule
    that correlates with a kept one is its double. A rule of few untied pairs is never one.
    """

    def certainty(row: RuleVerdict) -> float:
        low, high = row.untied.low, row.untied.high
        return -1.0 if low is None or high is None else max(low - 0.5, 0.5 - high)

    correlation_RR = np.nan_to_num(correlation_RR)  # NaN without a pair that both rules rated
    marked = list(verdicts)
    kept: list[int] = []
    for index in sorted(range(len(verdicts)), key=lambda index: -certainty(verdicts[index])):
        row = verdicts[index]
        if row.verdict == "says little" or row.num_untied_pairs < _MIN_UNTIED_PAIRS_OF_DOUBLE:
            continue
        correlations = {kept_index: float(correlation_RR[index, kept_index]) for kept_index in kept}
        doubled = max(correlations, key=lambda kept_index: correlations[kept_index], default=None)
        if doubled is None or correlations[doubled] < threshold:
            kept.append(index)
            continue
        marked[index] = replace(
            row,
            verdict="double",
            reason=f"says what rule {verdicts[doubled].number} says (correlation "
            f"{correlations[doubled]:.2f}), which is more certain; by itself: {row.verdict}",
            remedy="leave it out, or reword it so that it says something else",
            num_more_pairs=None,
            double_of=verdicts[doubled].rule_id,
            correlation=correlations[doubled],
        )
    return marked


def _summary(verdicts: Sequence[RuleVerdict]) -> Iterator[str]:
    """Yield sentences on all rules: verdicts, weights that disagree with them, intervals."""
    num_rules = counted(len(verdicts), "rule")
    num_by_verdict = Counter(row.verdict for row in verdicts)
    names = [name for name in get_args(RuleVerdictName) if num_by_verdict[name]]
    yield f"{num_rules}: {', '.join(f'{num_by_verdict[name]} {name}' for name in names)}."

    equal_share = 1 / len(verdicts)
    weighed = [(row, row.weight / equal_share - 1) for row in verdicts if row.weight is not None]
    if weighed and all(abs(excess) < _NEARLY_EQUAL for _, excess in weighed):
        yield "ENCORE's weights lie within 5 % of an equal share: they hardly tell rules apart."
        weighed = []
    over = [
        row for row, excess in weighed if excess >= _NEARLY_EQUAL and row.verdict in _NOT_TRUSTED
    ]
    under = [row for row, excess in weighed if excess <= -_NEARLY_EQUAL and row.verdict == "trust"]
    for side, rows in (("more", over), ("less", under)):
        if rows:
            weights = [f"rule {row.number} ({row.verdict}) {number(row.weight)}" for row in rows]
            yield (
                f"ENCORE's weights disagree, {side} than an equal share of {equal_share:.3f}: "
                f"{first_names(weights, limit=3)}."
            )
    yield (
        f"The intervals hold for {num_rules} at once: with meaningless labels at most 1 study in "
        "20 would have any rule as trust or against. Pairs count as independent."
    )
