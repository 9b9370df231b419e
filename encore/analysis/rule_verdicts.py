"""Say of each rule whether its ratings can be trusted to rank responses as people do.

The question is asked of all rules of a source at once. Each interval of untied accuracy therefore
has the confidence 1 - 0.05 / R for R rules (Bonferroni), and is exact (Clopper and Pearson): with
meaningless labels, at most one study in twenty says *trust* or *against* of any rule, whatever the
number of untied pairs. Pairs of one prompt belong together (`encore.analysis.share_intervals`);
where prompts are not known, pairs count as independent, and the answer says so.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from encore.analysis.answer_options import AnswerOptions
from encore.analysis.bootstrap import Estimate
from encore.analysis.consensus import agreement_with_others
from encore.analysis.entropy import entropy_weights
from encore.analysis.statistics import SourceStatistics
from encore.analysis.untied_accuracy import (
    CHANCE_OF_RANGE,
    MAX_MORE_PAIRS,
    heterogeneity_p,
    more_pairs,
    untied_interval,
)
from encore.core.number_text import (
    count,
    counted,
    first_names,
    number,
    pairs_of_prompts,
    percent,
    significant,
)

RuleVerdictName = Literal[
    "trust", "against", "undecided", "says little", "double", "sources differ"
]
_Side = Literal["trust", "against", "undecided"]

#: Probability, at most, of any false verdict in a source whose labels mean nothing.
ERROR_RATE = 0.05
#: With fewer untied pairs two rules can correlate by chance.
_MIN_UNTIED_PAIRS_OF_DOUBLE = 20
#: Verdicts that do not go with a large weight.
_NOT_TRUSTED: tuple[RuleVerdictName, ...] = (
    *("against", "undecided", "says little", "sources differ"),
)
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
            "undecided": it contains 50 %; "says little": it contains 50 %, and nearly all pairs
            are tied; "double": its ratings are those of another rule that is kept; "sources
            differ": its accuracy differs between sources, and so do its verdicts there.
        reason: Reason of the verdict in words, with its figures.
        caveat: What limits the verdict: missing ratings that could change it, a rule that seldom
            speaks, a rule that may be a double; empty if nothing does.
        remedy: Action that would settle or mend it; empty if there is nothing to do.
        untied: Accuracy over pairs without a tie, with an interval that holds for all rules of the
            source at once.
        tie_rate: Share of the fully rated pairs that are tied; None without such pairs.
        num_untied_pairs: Number of pairs with two different ratings.
        num_missing_pairs: Number of the source's pairs that lack a rating of this rule, without
            those to which it does not apply.
        num_more_pairs: For an undecided rule, the number of further pairs that decide with a
            probability of 80 % if estimate and tie rate are the true ones; None if the estimate is
            50 %, if there is none, or if it is more than a million.
        num_more_pairs_low: Lower end of the range in which that number lies with a chance of 80 %;
            None for more than a million.
        num_more_pairs_high: Upper end of that range; None for more than a million, or never.
        heterogeneity_p: Over all sources together, the p-value that the rule's untied accuracy is
            the same in each; None with fewer than two sources.
        double_of: The rule that is kept, for a double.
        correlation: Correlation with that rule within pairs.
        correlation_low: Lower end of its 95 % interval; a double has it at the threshold or above.
        correlation_high: Upper end of that interval.
        weight: ENCORE's weight of the rule in this source; None if a rule has no entropy.
        agrees_with_others: Mean correlation of its margins with those of the other rules, with a
            95 % interval; it says nothing about people, and is no accuracy. None without another
            rule that ranks pairs.
        applies: Share of the responses to which the rule applies, where alone all these figures
            hold; None if no judge said of a rule that it does not apply.
    """

    number: int
    rule_id: str
    source: str
    verdict: RuleVerdictName
    reason: str
    caveat: str = ""
    remedy: str
    untied: Estimate
    tie_rate: float | None
    num_untied_pairs: int
    num_missing_pairs: int
    num_more_pairs: int | None = None
    num_more_pairs_low: int | None = None
    num_more_pairs_high: int | None = None
    heterogeneity_p: float | None = None
    double_of: str | None = None
    correlation: float | None = None
    correlation_low: float | None = None
    correlation_high: float | None = None
    weight: float | None = None
    agrees_with_others: Estimate = field(default_factory=Estimate)
    applies: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the row of ``encore analyze --json``; ``applies`` is there if it has a value."""
        fields = dataclasses.asdict(self)
        if self.applies is None:
            del fields["applies"]
        return fields

    @property
    def reason_and_caveat(self) -> str:
        """Return the reason, followed by the caveat if there is one."""
        return _joined(self.reason, self.caveat)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleAnswer:
    """Answer to "which rules can I trust?" in one source.

    Attributes:
        source: The data set, or `POOLED` for all together.
        rows: Verdicts on the rules, by descending lower end of the interval, then rules without
            an interval.
        summary: Sentences on all rules together.
        num_pairs: Number of the source's pairs.
        num_prompts: Number of their prompts; None if they are not known, so that pairs count as
            independent.
    """

    source: str
    rows: tuple[RuleVerdict, ...]
    summary: tuple[str, ...]
    num_pairs: int
    num_prompts: int | None

    @property
    def pairs_and_prompts(self) -> str:
        """Return the numbers of pairs and prompts: ``976 pairs of 244 prompts``."""
        return pairs_of_prompts(self.num_pairs, self.num_prompts)


#: Remedy for ratings that are nearly always tied.
_FINER_RATINGS = "a finer scale or expected ratings (`--scale`, `--decode`)"


def rule_answer(
    statistics: SourceStatistics,
    *,
    rule_numbers: Mapping[str, int],
    options: AnswerOptions,
    sources: Sequence[SourceStatistics] = (),
    has_expected: bool = False,
) -> RuleAnswer:
    """Return the verdicts on the rules of a source, or of all sources together.

    Args:
        statistics: Statistics and counts of the source.
        rule_numbers: Number of each rule, from 1.
        options: Thresholds of the verdicts, and the temperature of ENCORE's weights.
        sources: Statistics of each source, if ``statistics`` are those of all together.
        has_expected: True if the ratings have their means over the labels' probabilities beside
            them.
    """
    rules = statistics.rules
    finer = "another wording"
    if statistics.by_level is None:
        ways = "its expected ratings (`--rating expected`)" if has_expected else _FINER_RATINGS
        finer = f"{ways}, or {finer}"
    entropy_R = np.array([rule.entropy_nats for rule in rules], dtype=np.float64)
    # NaN without an entropy, and then for all rules.
    weight_R = entropy_weights(entropy_R, tau=options.tau)
    agreement_R = agreement_with_others(statistics, threshold=options.double_correlation)
    verdicts = [
        replace(
            _verdict(
                statistics,
                index,
                rule_numbers[rule.rule_id],
                max_tie_rate=options.max_tie_rate,
                finer_ratings=finer,
            ),
            weight=None if np.isnan(weight_R[index]) else float(weight_R[index]),
            agrees_with_others=agreement_R[index],
        )
        for index, rule in enumerate(rules)
    ]
    verdicts = [_with_sources(row, sources) for row in verdicts]
    verdicts = _with_doubles(verdicts, statistics, threshold=options.double_correlation)
    verdicts = [_with_applicability(row) for row in verdicts]
    rows = sorted(verdicts, key=lambda row: 1.0 if row.untied.low is None else -row.untied.low)
    return RuleAnswer(
        source=statistics.source,
        rows=tuple(rows),
        summary=tuple(_summary(verdicts, statistics)),
        num_pairs=statistics.counts.num_pairs,
        num_prompts=statistics.num_prompts,
    )


def _verdict(
    statistics: SourceStatistics,
    rule_index: int,
    rule_number: int,
    *,
    max_tie_rate: float,
    finer_ratings: str,
) -> RuleVerdict:
    """Return the verdict on a rule without regard to other rules or sources, and no weight."""
    rule, counts = statistics.rules[rule_index], statistics.counts
    num_ties = int(counts.ties_R[rule_index])
    num_untied = rule.num_pairs - num_ties
    num_missing = statistics.num_missing_pairs(rule_index)
    applies = (
        statistics.applicability[rule_index].applies.value if statistics.applicability else None
    )
    confidence = _confidence(statistics)
    untied = untied_interval(statistics, rule_index, confidence=confidence)
    forecast: tuple[int | None, ...] = (None, None, None)
    pairs = counted(num_untied, "untied pair")
    is_seldom = rule.is_constant or (rule.tie_rate or 0.0) >= max_tie_rate
    speaks = f"speaks on {_short_percent(1 - (rule.tie_rate or 0.0))} of pairs"
    reason = f"agrees with people on {percent(untied.value)} of {pairs}"
    name: RuleVerdictName = _side(untied)
    if name == "trust":
        remedy = ""
        reason += f", at least {percent(untied.low)}; {speaks}"
    elif name == "against":
        remedy = "read pairs that it gets wrong; reword it or leave it out"
        reason += f", at most {percent(untied.high)}; {speaks}"
    elif is_seldom and rule.num_pairs:
        name = "says little"
        level = f"{percent(rule.top_level_share)} of its ratings are {number(rule.top_level)}"
        reason = f"{counted(num_ties, 'tie')} in {counted(rule.num_pairs, 'pair')}; {level}"
        remedy = finer_ratings
    elif untied.value is None:
        reason, remedy = "no pair has both responses rated", "ratings of both responses"
        if num_missing < rule.num_pairs_total:
            reason = "it applies to both responses of no pair"
            remedy = "pairs to which it applies"
    else:
        reason = f"{pairs} {'does' if num_untied == 1 else 'do'} not decide"
        forecast = more_pairs(statistics, rule_index, confidence=confidence)
        remedy = _forecast_text(*forecast[1:], is_half=untied.value == 0.5)
    seldom = "it seldom speaks" if is_seldom and name in ("trust", "against") else ""
    missing = ""
    if num_missing and untied.value is not None:
        missing = _missing_caveat(statistics, rule_index, num_missing, name=_side(untied))
    return RuleVerdict(
        number=rule_number,
        rule_id=rule.rule_id,
        source=statistics.source,
        verdict=name,
        reason=reason,
        caveat=_joined(seldom, missing),
        remedy=remedy,
        untied=untied,
        tie_rate=rule.tie_rate,
        num_untied_pairs=num_untied,
        num_missing_pairs=num_missing,
        num_more_pairs=forecast[0],
        num_more_pairs_low=forecast[1],
        num_more_pairs_high=forecast[2],
        applies=applies,
    )


def _with_applicability(row: RuleVerdict) -> RuleVerdict:
    """Return the verdict with the share of responses to which the rule applies in its reason."""
    if row.applies is None or row.applies == 1:
        return row
    where = f"{row.verdict} where it applies ({_short_percent(row.applies)} of responses)"
    remedy = row.remedy
    if row.verdict == "undecided" and row.untied.value is not None:
        remedy += ", of pairs to which it applies"
    return replace(row, reason=f"{where}: {row.reason}", remedy=remedy)


def _confidence(statistics: SourceStatistics) -> float:
    """Return the confidence of each interval, for all rules of a source at once."""
    return 1 - ERROR_RATE / len(statistics.rules)


def _side(untied: Estimate) -> _Side:
    """Return the verdict that an interval of untied accuracy gives by itself."""
    if untied.low is not None and untied.low > 0.5:
        return "trust"
    if untied.high is not None and untied.high < 0.5:
        return "against"
    return "undecided"


def _joined(*texts: str) -> str:
    """Return the texts that are not empty, with semicolons between them."""
    return "; ".join(filter(None, texts))


def _short_percent(share: float) -> str:
    """Return a share in percent with two digits: 0.053 is 5.3 %."""
    return f"{significant(100 * share)} %" if share < 0.995 else "100 %"


def _missing_caveat(
    statistics: SourceStatistics, rule_index: int, num_missing: int, *, name: _Side
) -> str:
    """Return what the verdict is if missing ratings all agree with people, or none does.

    Empty if it stays the same.
    """
    confidence = _confidence(statistics)
    against, in_favour = (
        untied_interval(statistics, rule_index, confidence=confidence, missing_as=outcome)
        for outcome in ("lost", "won")
    )
    changed = [
        f"{_side(interval)} if they counted {direction} it ({percent(interval.value)})"
        for direction, interval in (("against", against), ("for", in_favour))
        if _side(interval) != name
    ]
    lack = "lacks" if num_missing == 1 else "lack"
    pairs = counted(num_missing, "pair")
    return f"{pairs} {lack} a rating: {', '.join(changed)}" if changed else ""


def _forecast_text(low: int | None, high: int | None, *, is_half: bool) -> str:
    """Return how many further pairs decide, as a range with its chance."""
    chance = f"({CHANCE_OF_RANGE:.0%} chance)".replace("%", " %")
    if low is None:
        return f"more than {count(MAX_MORE_PAIRS)} further pairs, or never {chance}"
    least = count(int(float(f"{low:.2g}")))
    if is_half:
        return f"never at this estimate of 50 %, else at least {least} more pairs {chance}"
    if high is None:
        return f"between {least} more pairs and never {chance}"
    return f"between {least} and {count(int(float(f'{high:.2g}')))} more pairs {chance}"


def _with_sources(row: RuleVerdict, sources: Sequence[SourceStatistics]) -> RuleVerdict:
    """Return the verdict over all sources with regard to each: not *trust* where they disagree."""
    parts, indices = [], []
    for source in sources:
        for index, rule in enumerate(source.rules):
            if rule.rule_id == row.rule_id and rule.accuracy.untied is not None:
                parts.append(source)
                indices.append(index)
    p_value = heterogeneity_p(parts, indices)
    if p_value is None:
        return row
    intervals = [
        untied_interval(part, index, confidence=_confidence(part))
        for part, index in zip(parts, indices, strict=True)
    ]
    sides = [_side(interval) for interval in intervals]
    num_rules = len(parts[0].rules)
    if p_value >= ERROR_RATE / num_rules or {*sides} == {_side(row.untied)}:
        return replace(row, heterogeneity_p=p_value)
    verdicts = [
        f"{side} in {part.source} ({percent(interval.value)} of "
        f"{count(int(part.counts.wins_R[index] + part.counts.losses_R[index]))})"
        for side, part, index, interval in zip(sides, parts, indices, intervals, strict=True)
    ]
    return replace(
        row,
        verdict="sources differ",
        reason=f"{', '.join(verdicts)}; together {percent(row.untied.value)} of "
        f"{counted(row.num_untied_pairs, 'untied pair')}",
        remedy="use it where it is trusted (`--by-source`), or reword it for the other source",
        num_more_pairs=None,
        num_more_pairs_low=None,
        num_more_pairs_high=None,
        heterogeneity_p=p_value,
    )


def _with_doubles(
    verdicts: Sequence[RuleVerdict], statistics: SourceStatistics, *, threshold: float
) -> list[RuleVerdict]:
    """Return the verdicts with doubles marked.

    Rules are kept by descending certainty, which is the distance of the interval from 50 %. A rule
    whose correlation with a kept one surely reaches the threshold is its double: the lower end of
    the correlation's 95 % interval does. A rule of few untied pairs is never one.
    """

    def certainty(row: RuleVerdict) -> float:
        low, high = row.untied.low, row.untied.high
        return -1.0 if low is None or high is None else max(low - 0.5, 0.5 - high)

    correlation_RR, low_RR, high_RR = (
        np.nan_to_num(value_RR, nan=-1.0) for value_RR in statistics.correlation_intervals()
    )
    marked = list(verdicts)
    kept: list[int] = []
    for index in sorted(range(len(verdicts)), key=lambda index: -certainty(verdicts[index])):
        row = verdicts[index]
        if row.verdict == "says little" or row.num_untied_pairs < _MIN_UNTIED_PAIRS_OF_DOUBLE:
            continue
        nearest = max(kept, key=lambda kept_index: correlation_RR[index, kept_index], default=None)
        if nearest is None or correlation_RR[index, nearest] < threshold:
            kept.append(index)
            continue
        low, high = float(low_RR[index, nearest]), float(high_RR[index, nearest])
        correlation = float(correlation_RR[index, nearest])
        row = replace(row, correlation=correlation, correlation_low=low, correlation_high=high)
        figures = f"correlation {correlation:.2f}, {low:.2f} to {high:.2f}"
        says = f"what rule {verdicts[nearest].number} says ({figures})"
        if low < threshold:
            kept.append(index)
            marked[index] = replace(row, caveat=_joined(row.caveat, f"it may say {says}"))
            continue
        marked[index] = replace(
            row,
            verdict="double",
            reason=f"says {says}, which is more certain; by itself: {row.verdict}",
            remedy="leave it out, or reword it so that it says something else",
            num_more_pairs=None,
            num_more_pairs_low=None,
            num_more_pairs_high=None,
            double_of=verdicts[nearest].rule_id,
        )
    return marked


def _summary(verdicts: Sequence[RuleVerdict], statistics: SourceStatistics) -> Iterator[str]:
    """Yield sentences on all rules: verdicts, weights that disagree with them, intervals."""
    num_rules = counted(len(verdicts), "rule")
    if all(row.tie_rate is None for row in verdicts):
        yield (
            "There are no preferences in these ratings: no pair has ratings of both responses. "
            "Entropy and weights need none; verdicts on rules do."
        )
        return
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
            weights = [f"rule {row.number} ({row.verdict}, {number(row.weight)})" for row in rows]
            yield (
                f"ENCORE's weights give {side} than an equal share ({number(equal_share)}) to "
                f"{first_names(weights, limit=3)}."
            )
    together = {
        True: "The prompts of these pairs are not known: pairs count as independent.",
        False: "Pairs of one prompt count together.",
    }[statistics.num_prompts is None]
    yield (
        f"The intervals hold for {num_rules} at once: with meaningless labels at most 1 study in "
        f"20 would have any rule as trust or against. {together}"
    )
