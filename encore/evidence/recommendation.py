"""How many ratings a curve of weight errors recommends, in numbers and words."""

from __future__ import annotations

import math
from dataclasses import dataclass

from encore.evidence.error_curve import ErrorCurve

#: Fewer pairs than these make no curve; half of them is the largest sample.
MIN_PAIRS = 100
#: A curve that misses a measured error by more than this share promises nothing.
_MAX_MISFIT = 0.25
#: Nor does one with a rule that gives ratings never seen before in more than this share of cases.
_MAX_UNSEEN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """How many ratings bring all weights within a target of the true ones, 95 % confidence.

    Attributes:
        target: Largest error of any weight, as a share.
        num_ratings_per_rule: Ratings of an average rule; None where the data cannot promise it.
        num_pairs: The same in pairs.
        projected_num_ratings_per_rule: What the fitted curve says, also beyond the data; None
            where it promises nothing.
        sentence: The recommendation in words, without a full stop.
    """

    target: float
    num_ratings_per_rule: int | None = None
    num_pairs: int | None = None
    projected_num_ratings_per_rule: int | None = None
    sentence: str


def recommend(
    target: float, fit: ErrorCurve, *, num_pairs: int, ratings_per_pair: float
) -> Recommendation:
    """Where a curve reaches a target.

    Args:
        target: Largest error of any weight, as a share.
        fit: Error against pairs.
        num_pairs: Pairs in the data: nothing is promised beyond them.
        ratings_per_pair: Ratings of an average rule in a pair.
    """
    needed = max(math.ceil(fit.num_pairs(target)), fit.smallest_size)
    projected = round(needed * ratings_per_pair)
    if needed > num_pairs:
        return Recommendation(
            target=target,
            projected_num_ratings_per_rule=projected,
            sentence=f"{_about(num_pairs * ratings_per_pair)} ratings per rule are too few for "
            f"{_percent(target)}: these weights are within {_percent(fit.error(num_pairs))} of "
            f"the true ones, 95 % confidence; {_percent(target)} would take about "
            f"{_about(projected)} (extrapolated)",
        )
    return Recommendation(
        target=target,
        num_ratings_per_rule=projected,
        num_pairs=needed,
        projected_num_ratings_per_rule=projected,
        sentence=f"these weights are within {_percent(target)} of the true ones after "
        f"{_about(projected)} ratings per rule ({_about(needed)} pairs), 95 % confidence",
    )


def too_few_pairs(num_pairs: int) -> str:
    """Why there is no curve."""
    return (
        f"{num_pairs} pairs are too few to learn from samples of them how sure the weights are; "
        f"at least {MIN_PAIRS} are needed"
    )


def unknown_levels(rule_id: str, *, single_share: float) -> str:
    """What is wrong with a rule whose levels are far from all known; empty if nothing is.

    The share of ratings that occur once estimates the chance that the next rating is one that
    never occurred (Good and Turing). As long as it is large the entropy grows with every rating,
    and no curve knows where it ends.
    """
    if single_share <= _MAX_UNSEEN:
        return ""
    return (
        f"no number of ratings can be named: {single_share:.0%} of the ratings of rule {rule_id} "
        "occur once only, so its entropy, and all weights with it, still grows with their number; "
        "round the ratings or rate more pairs"
    )


def misfitting_curve(fit: ErrorCurve | None) -> str:
    """What is wrong with a curve; empty if nothing is."""
    if fit is None:
        return "most samples hold no rating of some rule; rate that rule on more pairs"
    if fit.misfit > _MAX_MISFIT:
        return (
            "no number of ratings can be named: the error of these weights does not fall as "
            "1/sqrt(n), so they may never settle"
        )
    return ""


def _about(number: float) -> str:
    """Two digits, as more would promise too much: 4317 is 4,300."""
    return f"{float(f'{number:.2g}'):,.0f}"


def _percent(share: float) -> str:
    """Two digits: 0.0234 is 2.3 %."""
    return f"{float(f'{100 * share:.2g}'):g} %"
