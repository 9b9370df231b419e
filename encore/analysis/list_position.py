"""Measure how a rule's position in the list changes its ratings (``--layout all-rules``).

The order of the rules is drawn for each response, so position has nothing to do with the response:
the slope of ratings over positions is the effect of the position alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import Estimate, draw_rows, middle_95
from encore.data.records import RESPONSES
from encore.data.rule_order import rule_order
from encore.warehouse import PairRatings, Ratings, read_pairs_of

# Suffixes: D draws, P pairs, R rules, S sums over the ratings of a pair; R1: the rules, then
# all together; 2 before PR: chosen and rejected.

NUM_DRAWS = 500
#: Finding the positions of more pairs would take longer than the rest of the analysis.
_MAX_PAIRS = 20_000
SEED = 0

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionEffect:
    """Effect of the position in the list on the ratings of a rule, or of all rules.

    Attributes:
        rule_id: The rule; None for all rules together, each compared with itself.
        num_ratings: Number of ratings that have a value.
        last_minus_first: Rating in the last position minus rating in the first, on the line of
            least squares over all positions.
    """

    rule_id: str | None
    num_ratings: int
    last_minus_first: Estimate


def position_effects(ratings: Ratings) -> tuple[PositionEffect, ...]:
    """Return the effect of the position for each rule, then for all rules together.

    The 95 % intervals come from resampling whole prompts, or pairs if prompts are not known. Of
    more than 20,000 pairs a random sample counts. The result is empty for ratings that are not of a
    run with ``--layout all-rules``, or are of one rule.

    Args:
        ratings: The opened ratings of one run of `encore rate`.
    """
    manifest = ratings.manifest
    if manifest is None or not manifest.asks_all_rules:
        return ()
    pairs = read_pairs_of(ratings)
    if len(manifest.rule_ids) < 2 or not pairs.num_pairs:
        return ()
    rng = np.random.default_rng(SEED)
    if pairs.num_pairs > _MAX_PAIRS:
        pairs = pairs.take(rng.choice(pairs.num_pairs, _MAX_PAIRS, replace=False))
    position_2PR = _positions(pairs, manifest.rule_ids, seed=manifest.settings.get("order_seed", 0))
    sum_PSR = _sums(position_2PR, pairs.rating_2PR)
    ones_P = np.ones(pairs.num_pairs)
    effect_R1 = _effects(ones_P, sum_PSR)
    drawn_DR1 = np.array(
        [
            _effects(np.bincount(row_N, minlength=pairs.num_pairs).astype(np.float64), sum_PSR)
            for row_N in draw_rows(pairs.group_P, rng=rng, num_draws=NUM_DRAWS)
        ]
    )
    num_ratings_R = sum_PSR[:, 0].sum(axis=0).astype(int).tolist()
    return tuple(
        PositionEffect(
            rule_id=rule_id,
            num_ratings=num_ratings,
            last_minus_first=_estimate(float(effect), drawn_D),
        )
        for rule_id, num_ratings, effect, drawn_D in zip(
            (*pairs.rule_ids, None),
            (*num_ratings_R, sum(num_ratings_R)),
            effect_R1,
            drawn_DR1.T,
            strict=True,
        )
    )


def _positions(pairs: PairRatings, rule_ids: tuple[str, ...], *, seed: int) -> _Floats:
    """Return the position of each rating's rule, 0 for the first to 1 for the last; [2, P, R]."""
    position_2PR = np.empty((len(RESPONSES), pairs.num_pairs, len(pairs.rule_ids)))
    for response_index, response in enumerate(RESPONSES):
        for pair_index, pair_id in enumerate(pairs.pair_id_P):
            order = rule_order(rule_ids, pair_id=pair_id, response=response, seed=seed)
            position_by_rule = {rule_id: position for position, rule_id in enumerate(order)}
            position_2PR[response_index, pair_index] = [
                position_by_rule[rule_id] for rule_id in pairs.rule_ids
            ]
    return position_2PR / (len(rule_ids) - 1)


def _sums(x_2PR: _Floats, y_2PR: _Floats) -> _Floats:
    """Return the sums of 1, x, y, xx and xy over each pair's ratings, shape [P, S, R]."""
    x_2PR = np.where(np.isnan(y_2PR), np.nan, x_2PR)
    terms = (x_2PR * 0 + 1, x_2PR, y_2PR, x_2PR * x_2PR, x_2PR * y_2PR)
    return np.stack([np.nansum(term_2PR, axis=0) for term_2PR in terms], axis=1)


def _effects(times_P: _Floats, sum_PSR: _Floats) -> _Floats:
    """Return the slope of each rule, then that of all rules around their means, shape [R1].

    Args:
        times_P: Number of times that each pair counts.
        sum_PSR: Sums over the ratings of each pair.
    """
    count_R, x_R, y_R, xx_R, xy_R = np.tensordot(times_P, sum_PSR, axes=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread_R, common_R = xx_R - x_R**2 / count_R, xy_R - x_R * y_R / count_R
        of_all = np.nansum(common_R) / np.nansum(spread_R)
        return np.append(common_R / spread_R, of_all)


def _estimate(value: float, drawn_D: _Floats) -> Estimate:
    """Return a slope with its interval, or nothing if all ratings have one position."""
    defined_D = drawn_D[np.isfinite(drawn_D)]
    if not np.isfinite(value) or not len(defined_D):
        return Estimate()
    low, high = middle_95(defined_D)
    return Estimate(value=value, low=low, high=high)
