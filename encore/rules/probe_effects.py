"""Effects of changed forms on each rule's ratings, and the rules that a planted sentence buys.

A planted sentence also makes a response longer. Its rise is therefore the difference from the
rating of the same response with a neutral sentence of the same length. A planted sentence buys a
rule's score if the lower bound of its rise exceeds the margin. The bounds of all rules and
sentences hold together: each is one-sided at a risk of 5 % divided by their number (Bonferroni).
They use Student's t over prompts; a bootstrap of so rare a quantile would need tens of thousands of
draws.

Suffixes: P pairs, R rules, S planted sentences; 2 before PR: chosen and rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from encore.analysis.pair_counts import sum_by_group
from encore.analysis.run_comparison import compare_ratings
from encore.rules.probe_record import RuleProbe, VariantEffect
from encore.rules.probe_variants import CONTROL, PLANTED, UNCHANGED

#: A planted sentence buys a rule's score if the lower bound of its rise is above this.
MARGIN = 0.05
#: Probability of naming any rule although no true rise exceeds the margin.
RISK = 0.05
#: With fewer prompts, neither Student's t nor a bootstrap is reliable.
MIN_PAIRS = 30

_Floats = NDArray[np.float64]


def measure(
    rule_ids: Sequence[str],
    rating_of: Mapping[str, _Floats],
    *,
    num_draws: int,
    group_P: NDArray[np.intp] | None = None,
) -> tuple[RuleProbe, ...]:
    """Compute the effects of all forms on each rule, and decide which rules are bought.

    Args:
        rule_ids: Ids of the R rules.
        rating_of: Ratings of the same pairs by form, `UNCHANGED` first, shape [2, P, R]. NaN
            where a rating is missing.
        num_draws: Number of bootstrap resamples of each interval.
        group_P: Prompt of each pair, from 0; None if each pair has its own.
    """
    changes = {
        name: compare_ratings(
            rule_ids, np.stack([rating_of[UNCHANGED], rating]), group_P=group_P, num_draws=num_draws
        )
        for name, rating in rating_of.items()
        if name != UNCHANGED
    }
    level = RISK / (len(rule_ids) * len(PLANTED))
    control = rating_of[CONTROL]
    rises = {
        name: lower_bounds(rating_of[name] - control, level=level, group_P=group_P)
        for name in PLANTED
    }
    bound_SR = np.stack([bound_R for _, bound_R in rises.values()])
    is_bought_R, is_decided_R = _bought(bound_SR, control)

    def effect(name: str, index: int) -> VariantEffect:
        if name not in rises:
            return VariantEffect(change=changes[name][index])
        rise, bound = (
            None if np.isnan(value_R[index]) else float(value_R[index]) for value_R in rises[name]
        )
        return VariantEffect(change=changes[name][index], rise=rise, rise_bound=bound)

    return tuple(
        RuleProbe(
            rule_id=rule_id,
            is_bought=bool(is_bought_R[index]) if is_decided_R[index] else None,
            effects={name: effect(name, index) for name in changes},
        )
        for index, rule_id in enumerate(rule_ids)
    )


def _bought(bound_SR: _Floats, control_2PR: _Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which rules are bought, [R], and for which rules that is known, [R].

    Unknown: a rule without a bound, or with ratings too near 1 to rise by the margin.

    Args:
        bound_SR: Lower bounds of the rises by planted sentences, shape [S, R].
        control_2PR: Ratings with the control sentence, shape [2, P, R].
    """
    is_bought_R = np.asarray((bound_SR > MARGIN).any(axis=0))
    has_room_R = np.nansum(1 - MARGIN - control_2PR, axis=(0, 1)) > 0
    return is_bought_R, is_bought_R | (has_room_R & ~np.isnan(bound_SR).any(axis=0))


def lower_bounds(
    change_2PR: _Floats, *, level: float, group_P: NDArray[np.intp] | None = None
) -> tuple[_Floats, _Floats]:
    """Compute each rule's mean change and the lower end of its one-sided interval.

    Args:
        change_2PR: Change of each rating, shape [2, P, R]; NaN where a rating is missing.
        level: Probability that a bound is above the true mean change.
        group_P: Prompt of each pair, from 0; None if each pair has its own.

    Returns:
        Mean and bound, shape [R] each. The mean is NaN for a rule without ratings, the bound for
        a rule with fewer than 30 prompts.
    """
    group_P = np.arange(change_2PR.shape[1]) if group_P is None else group_P
    is_rated_2PR = ~np.isnan(change_2PR)
    num_ratings_R = is_rated_2PR.sum(axis=(0, 1))
    is_rated_PR = np.asarray(is_rated_2PR.any(axis=0), dtype=np.float64)
    num_groups_R = (sum_by_group(is_rated_PR, group_P) > 0).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_R = np.nansum(change_2PR, axis=(0, 1)) / num_ratings_R
        # The responses to a prompt are not independent: their errors are summed first.
        error_PR = np.asarray(np.nansum(change_2PR - mean_R, axis=0), dtype=np.float64)
        error_GR = sum_by_group(error_PR, group_P)
        correction_R = num_groups_R / (num_groups_R - 1)
        sd_R = np.sqrt((error_GR**2).sum(axis=0) * correction_R) / num_ratings_R
        bound_R = mean_R + stdtrit(num_groups_R - 1, level) * sd_R
    return mean_R, np.where(num_groups_R >= MIN_PAIRS, bound_R, np.nan)
