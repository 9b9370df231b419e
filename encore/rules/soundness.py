"""What ratings of changed forms say about each rule, and which scores a planted sentence buys.

A planted sentence also makes a response longer. Its rise is therefore measured from the ratings
with a neutral sentence of the same length at the same place, response by response. A rule is named
where the lower bound of a rise exceeds the margin. The bounds of all rules and sentences hold
together: each is one-sided at a risk of 5 % divided by their number (Bonferroni), by Student's t
over pairs, because a bootstrap of so rare a quantile would need tens of thousands of draws.

Suffixes: P pairs, R rules, S planted sentences; 2 before PR: chosen and rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from encore.rules.probe_record import RuleProbe, VariantEffect
from encore.rules.probe_variants import CONTROL, PLANTED, UNCHANGED
from encore.weighting.run_comparison import compare_ratings

#: A planted sentence buys a rule's score if it surely raises it by more than this.
MARGIN = 0.05
#: That any rule is named although no rise exceeds the margin.
RISK = 0.05
#: Below this number of pairs neither Student's t nor a bootstrap is to be trusted.
MIN_PAIRS = 30

_Floats = NDArray[np.float64]


def measure(
    rule_ids: Sequence[str], rating_of: Mapping[str, _Floats], *, num_draws: int
) -> tuple[RuleProbe, ...]:
    """Every figure of every rule.

    Args:
        rule_ids: The R rules.
        rating_of: By form, `UNCHANGED` first: ratings of the same pairs, NaN where one is
            missing, shape [2, P, R].
        num_draws: Resamples.
    """
    changes = {
        name: compare_ratings(
            rule_ids, np.stack([rating_of[UNCHANGED], rating]), num_draws=num_draws
        )
        for name, rating in rating_of.items()
        if name != UNCHANGED
    }
    level = RISK / (len(rule_ids) * len(PLANTED))
    control = rating_of[CONTROL]
    rises = {name: lower_bounds(rating_of[name] - control, level=level) for name in PLANTED}
    bound_SR = np.stack([bound_R for _, bound_R in rises.values()])
    is_bought_R = np.asarray((bound_SR > MARGIN).any(axis=0))
    # Nothing can be said without a bound, or where ratings are too near 1 to rise by the margin.
    has_room_R = np.nansum(1 - MARGIN - control, axis=(0, 1)) > 0
    is_known_R = np.asarray(is_bought_R | (has_room_R & ~np.isnan(bound_SR).any(axis=0)))

    def effect(name: str, place: int) -> VariantEffect:
        if name not in rises:
            return VariantEffect(change=changes[name][place])
        rise, bound = (None if np.isnan(one[place]) else float(one[place]) for one in rises[name])
        return VariantEffect(change=changes[name][place], rise=rise, rise_bound=bound)

    return tuple(
        RuleProbe(
            rule_id=rule_id,
            is_bought=bool(is_bought_R[place]) if is_known_R[place] else None,
            effects={name: effect(name, place) for name in changes},
        )
        for place, rule_id in enumerate(rule_ids)
    )


def lower_bounds(change_2PR: _Floats, *, level: float) -> tuple[_Floats, _Floats]:
    """Each rule's mean change and the lower end of its one-sided interval, shape [R] each.

    Args:
        change_2PR: Change of each rating; NaN where it is not known, shape [2, P, R].
        level: The risk that a bound lies above what all pairs of this kind would give.

    Returns:
        NaN for a rule without a change; no bound for one with fewer than 30 pairs.
    """
    is_known_2PR = ~np.isnan(change_2PR)
    num_ratings_R = is_known_2PR.sum(axis=(0, 1))
    num_pairs_R = is_known_2PR.any(axis=0).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_R = np.nansum(change_2PR, axis=(0, 1)) / num_ratings_R
        # The two responses of a pair belong together: their errors are summed first.
        error_PR = np.nansum(change_2PR - mean_R, axis=0)
        correction_R = num_pairs_R / (num_pairs_R - 1)
        sd_R = np.sqrt((error_PR**2).sum(axis=0) * correction_R) / num_ratings_R
        bound_R = mean_R + stdtrit(num_pairs_R - 1, level) * sd_R
    return mean_R, np.where(num_pairs_R >= MIN_PAIRS, bound_R, np.nan)
