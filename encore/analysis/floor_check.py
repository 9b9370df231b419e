"""Check whether rules agree with people's preferences above a floor, and no less than before.

Each bound is one-sided, with 95 % confidence: the end of a two-sided 90 % interval. A check passes
if every rule passes. So it wrongly passes with a probability of at most 5 % if any rule is at the
floor or below it, however many rules are checked (an intersection-union test): no correction for
their number is due. That holds for rules that were chosen without a look at these pairs.

Suffixes: P pairs, R rules; 2 before PR: chosen and rejected, and before that the two runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtri

from encore.analysis.bootstrap import Estimate
from encore.analysis.paired_difference import mean_difference_interval
from encore.analysis.run_comparison import common_ratings
from encore.analysis.statistics import SourceStatistics
from encore.analysis.untied_accuracy import MAX_MORE_PAIRS, POWER, more_pairs, untied_interval
from encore.warehouse import Ratings, read_pairs_of

#: Probability beyond a bound.
TAIL = 0.05
_CONFIDENCE = 1 - 2 * TAIL

#: "above": the bound of a rule's figure is above the limit. "below": the other bound is below it.
Outcome = Literal["above", "below", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFloor:
    """Agreement of one rule with people's preferences, against a floor.

    Attributes:
        rule_id: The rule, as in the rule set.
        figure: The figure that is checked; its bounds are one-sided, each with 95 % confidence.
        agreement: Accuracy over pairs without a tie, with its lower and upper bound.
        outcome: Position of these bounds to the floor.
        outcome_if_missing_lost: The same if the judge had been wrong on each pair that lacks a
            rating.
        num_untied_pairs: Number of pairs with two different ratings.
        num_missing_pairs: Number of pairs that lack a rating of this rule, without those to which
            it does not apply.
        tie_rate: Share of the fully rated pairs that are tied; None without such pairs.
        num_more_pairs: For an undecided rule, the number of further pairs that decide with a
            probability of 80 % if the estimate and the tie rate are the true ones; None if the
            estimate is the floor, if there is none, or if it is more than a million.
    """

    rule_id: str
    figure: Literal["untied"] = "untied"
    agreement: Estimate
    outcome: Outcome
    outcome_if_missing_lost: Outcome
    num_untied_pairs: int
    num_missing_pairs: int
    tie_rate: float | None
    num_more_pairs: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDrift:
    """Difference of one rule's agreement with people between two runs, on the same pairs.

    Attributes:
        rule_id: The rule, in both runs.
        difference: Half-credit accuracy of the new run less that of the old one, with its lower and
            upper bound, one-sided, each with 95 % confidence.
        outcome: Position of these bounds to the negative margin.
        num_pairs: Number of pairs that both runs rated fully.
        num_better_pairs: Number of these on which the new run agrees with people more than the old
            one: it is right where the old one is wrong or ties, or ties where that is wrong.
        num_worse_pairs: Number of these on which it agrees less.
        num_lost_pairs: Number of common pairs that the old run rated fully, and the new one did
            not.
        num_more_pairs: For an undecided rule, the number of further pairs that decide with a
            probability of 80 % if the difference is the true one; None if it is the negative
            margin, if there is none, or if it is more than a million.
    """

    rule_id: str
    difference: Estimate
    outcome: Outcome
    num_pairs: int
    num_better_pairs: int
    num_worse_pairs: int
    num_lost_pairs: int
    num_more_pairs: int | None


def outcome_of(figure: Estimate, limit: float) -> Outcome:
    """Return the position of a figure's bounds to a limit."""
    if figure.low is not None and figure.low > limit:
        return "above"
    return "below" if figure.high is not None and figure.high < limit else "undecided"


def check_floor(
    statistics: SourceStatistics, *, floor: float, rule_ids: Sequence[str]
) -> tuple[RuleFloor, ...]:
    """Return the agreement of each of these rules with people's preferences, against a floor.

    Args:
        statistics: Statistics and counts of the pairs.
        floor: Share of untied pairs on which a rule must agree with people.
        rule_ids: The rules to check, in this order.
    """
    index_by_rule = {rule.rule_id: index for index, rule in enumerate(statistics.rules)}
    return tuple(
        _checked_rule(statistics, index_by_rule[rule_id], floor=floor) for rule_id in rule_ids
    )


def _checked_rule(statistics: SourceStatistics, rule_index: int, *, floor: float) -> RuleFloor:
    rule = statistics.rules[rule_index]
    agreement = untied_interval(statistics, rule_index, confidence=_CONFIDENCE)
    if_lost = untied_interval(statistics, rule_index, confidence=_CONFIDENCE, missing_as="lost")
    outcome, num_more_pairs = outcome_of(agreement, floor), None
    if outcome == "undecided" and agreement.value is not None:
        num_more_pairs, _, _ = more_pairs(
            statistics, rule_index, confidence=_CONFIDENCE, level=floor
        )
    return RuleFloor(
        rule_id=rule.rule_id,
        agreement=agreement,
        outcome=outcome,
        outcome_if_missing_lost=outcome_of(if_lost, floor),
        num_untied_pairs=rule.num_pairs - int(statistics.counts.ties_R[rule_index]),
        num_missing_pairs=statistics.num_missing_pairs(rule_index),
        tie_rate=rule.tie_rate,
        num_more_pairs=num_more_pairs,
    )


def check_drift(
    new: Ratings, old: Ratings, *, margin: float, rule_ids: Sequence[str]
) -> tuple[RuleDrift, ...]:
    """Return the difference of each rule's agreement between two runs, against a margin.

    Args:
        new: Ratings of the new run.
        old: Ratings of the old run.
        margin: Loss of agreement that is accepted.
        rule_ids: The rules to check, in this order. A rule that the old run lacks is left out.

    Raises:
        InputError: The runs have no rule or no pair in common.
    """
    runs = [read_pairs_of(ratings) for ratings in (old, new)]
    common_rules, rating_22PR, group_P = common_ratings(runs, labels=[old.label, new.label])
    rows = []
    for rule_id in rule_ids:
        if rule_id not in common_rules:
            continue
        rating_22P = rating_22PR[:, :, :, common_rules.index(rule_id)]
        is_rated_2P = np.asarray(~np.isnan(rating_22P).any(axis=1))
        is_compared_P = is_rated_2P.all(axis=0)
        win_2P = np.sign(rating_22P[:, 0] - rating_22P[:, 1])[:, is_compared_P]
        delta_P = (win_2P[1] - win_2P[0]) / 2
        difference = mean_difference_interval(delta_P, group_N=group_P[is_compared_P], tail=TAIL)
        outcome, num_pairs = outcome_of(difference, -margin), int(is_compared_P.sum())
        more = _more_pairs(difference, margin, num_pairs) if outcome == "undecided" else None
        rows.append(
            RuleDrift(
                rule_id=rule_id,
                difference=difference,
                outcome=outcome,
                num_pairs=num_pairs,
                num_better_pairs=int((delta_P > 0).sum()),
                num_worse_pairs=int((delta_P < 0).sum()),
                num_more_pairs=more,
                num_lost_pairs=int((is_rated_2P[0] & ~is_rated_2P[1]).sum()),
            )
        )
    return tuple(rows)


def _more_pairs(difference: Estimate, margin: float, num_pairs: int) -> int | None:
    """Return how many further pairs decide about a difference.

    Its bounds are z of the confidence standard errors away, and must be (z + z of the power) of
    them from the negative margin; errors shrink with the root of the number of pairs.
    """
    if difference.value is None or difference.low is None or difference.high is None:
        return None
    distance = abs(difference.value + margin)
    reach = (difference.high - difference.low) / 2 * (1 + ndtri(POWER) / ndtri(1 - TAIL))
    if distance == 0 or num_pairs * (reach / distance) ** 2 > MAX_MORE_PAIRS:
        return None
    return max(1, math.ceil(num_pairs * (reach / distance) ** 2) - num_pairs)
