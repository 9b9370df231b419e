"""Compose ratings: add up the rules' margins with weights, and count the pairs that are right."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import Estimate
from encore.analysis.share_intervals import half_credit_interval, independent_number
from encore.analysis.statistics import Accuracy
from encore.warehouse import PairRatings

# Suffixes: P pairs, R rules, V weight vectors, B pairs of one block.

#: A composed margin below this is a tie. Margins that cancel (0.8 - 0.7 and 0.3 - 0.4 at equal
#: weights) leave a rounding error of 1e-17, which must not decide a pair.
TIE_TOLERANCE = 1e-12
#: Composed margins that are held at a time: 32 MB.
_MAX_BLOCK_MARGINS = 4_000_000

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Numbers of pairs that a composed rating ranks right, ties, and ranks wrong.

    Attributes:
        num_wins: Pairs that are ranked right.
        num_ties: Pairs that are tied.
        num_losses: Pairs that are ranked wrong.
        num_independent: Number of independent pairs that say as much, where prompts have several
            pairs; None for as many as there are pairs. NaN if one prompt has all pairs.
    """

    num_wins: int
    num_ties: int
    num_losses: int
    num_independent: float | None = None

    @property
    def accuracy(self) -> Accuracy:
        """Return the accuracy under each tie policy; None where there is no pair to count."""
        return Accuracy.from_counts(wins=self.num_wins, ties=self.num_ties, losses=self.num_losses)

    @property
    def half_credit(self) -> Estimate:
        """Return half-credit accuracy with its 95 % interval; all None without pairs."""
        half, num_pairs = self.accuracy.half, self.num_wins + self.num_ties + self.num_losses
        if half is None:
            return Estimate()
        number = num_pairs if self.num_independent is None else self.num_independent
        if math.isnan(number):
            return Estimate(value=half)
        low, high = half_credit_interval(half, tie_rate=self.num_ties / num_pairs, num_pairs=number)
        return Estimate(value=half, low=low, high=high)


def composed_margins(pairs: PairRatings, weight_VR: _Floats) -> _Floats:
    """Return composed rating(chosen) - composed rating(rejected), shape [V, P].

    The composed rating of a response is the weighted mean of its ratings over the rules that apply
    to it. A response to which no rule with a weight applies has none; its pair is a tie.

    Args:
        pairs: Pairs without a failed rating (`PairRatings.complete`).
        weight_VR: V weight vectors, none negative, shape [V, R].
    """
    if pairs.not_applicable_2PR is None:  # the weights are divided by the same number everywhere
        return np.asarray(weight_VR @ pairs.margin_PR.T)
    applies_2PR = ~pairs.not_applicable_2PR
    with np.errstate(invalid="ignore"):  # 0 / 0
        chosen_VP, rejected_VP = (
            (weight_VR @ np.where(applies_PR, rating_PR, 0.0).T) / (weight_VR @ applies_PR.T)
            for rating_PR, applies_PR in zip(pairs.rating_2PR, applies_2PR, strict=True)
        )
    return np.asarray(np.nan_to_num(chosen_VP - rejected_VP))


def composed_outcomes(
    pairs: PairRatings, weight_VR: _Floats, group_P: NDArray[np.intp] | None = None
) -> tuple[Outcome, ...]:
    """Return the outcome of each weight vector over all pairs.

    Args:
        pairs: Pairs without a failed rating (`PairRatings.complete`).
        weight_VR: V weight vectors, shape [V, R].
        group_P: Prompt of each pair, from 0, for intervals over whole prompts; None if no interval
            is wanted, or if pairs are independent.
    """
    numbers: list[float | None] = [None] * len(weight_VR)
    if group_P is not None:
        for index, weight_R in enumerate(weight_VR):
            numbers[index] = _num_independent(composed_margins(pairs, weight_R[None])[0], group_P)
    wins_V, losses_V = np.zeros((2, len(weight_VR)), dtype=np.int64)
    num_rows = max(_MAX_BLOCK_MARGINS // max(len(weight_VR), 1), 1)
    for start in range(0, pairs.num_pairs, num_rows):
        rows = np.arange(start, min(start + num_rows, pairs.num_pairs))
        composed_VB = composed_margins(pairs.take(rows), weight_VR)
        wins_V += np.count_nonzero(composed_VB > TIE_TOLERANCE, axis=1)
        losses_V += np.count_nonzero(composed_VB < -TIE_TOLERANCE, axis=1)
    return tuple(
        Outcome(
            num_wins=wins,
            num_ties=pairs.num_pairs - wins - losses,
            num_losses=losses,
            num_independent=number,
        )
        for wins, losses, number in zip(wins_V.tolist(), losses_V.tolist(), numbers, strict=True)
    )


def outcome_of_margins(composed_P: _Floats, group_P: NDArray[np.intp]) -> Outcome:
    """Return the outcome of composed margins, shape [P], of pairs of these prompts."""
    num_wins = int(np.count_nonzero(composed_P > TIE_TOLERANCE))
    num_losses = int(np.count_nonzero(composed_P < -TIE_TOLERANCE))
    return Outcome(
        num_wins=num_wins,
        num_ties=len(composed_P) - num_wins - num_losses,
        num_losses=num_losses,
        num_independent=_num_independent(composed_P, group_P),
    )


def _num_independent(composed_P: _Floats, group_P: NDArray[np.intp]) -> float | None:
    """Return `Outcome.num_independent` of composed margins."""
    if len(np.unique(group_P)) == len(group_P):
        return None
    number = independent_number(pair_credits(composed_P), group_P)
    return math.nan if number is None else number


def pair_credits(composed_P: _Floats) -> _Floats:
    """Return 1 for a pair that is ranked right, 1/2 for a tie, 0 for a wrong one; shape [P]."""
    right_P = (composed_P > TIE_TOLERANCE).astype(np.float64)
    return np.asarray((right_P + (composed_P >= -TIE_TOLERANCE)) / 2, dtype=np.float64)


def rule_margin_sds(margin_PR: _Floats) -> tuple[float | None, ...]:
    """Return the standard deviation (ddof 1) of each rule's margins; None for fewer than two.

    Args:
        margin_PR: rating(chosen) - rating(rejected), shape [P, R]; NaN where a rating is missing.
    """
    sds = []
    for margin_P in margin_PR.T:
        present_P = margin_P[~np.isnan(margin_P)]
        sds.append(float(np.std(present_P, ddof=1)) if len(present_P) > 1 else None)
    return tuple(sds)
