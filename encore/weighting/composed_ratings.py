"""Compose ratings: add up the rules' margins with weights, and count the pairs that are right."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.analysis.bootstrap import Estimate
from encore.analysis.share_intervals import half_credit_interval, independent_number
from encore.analysis.statistics import Accuracy

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


def composed_outcomes(
    margin_PR: _Floats, weight_VR: _Floats, group_P: NDArray[np.intp] | None = None
) -> tuple[Outcome, ...]:
    """Return the outcome of each weight vector over all pairs.

    Args:
        margin_PR: rating(chosen) - rating(rejected), shape [P, R], none missing.
        weight_VR: V weight vectors, shape [V, R].
        group_P: Prompt of each pair, from 0, for intervals over whole prompts; None if no interval
            is wanted, or if pairs are independent.
    """
    numbers: list[float | None] = [None] * len(weight_VR)
    if group_P is not None and len(np.unique(group_P)) < len(group_P):
        for index, weight_R in enumerate(weight_VR):
            number = independent_number(pair_credits(margin_PR @ weight_R), group_P)
            numbers[index] = math.nan if number is None else number
    wins_V, losses_V = np.zeros((2, len(weight_VR)), dtype=np.int64)
    num_rows = max(_MAX_BLOCK_MARGINS // max(len(weight_VR), 1), 1)
    for start in range(0, len(margin_PR), num_rows):
        composed_VB = weight_VR @ margin_PR[start : start + num_rows].T
        wins_V += np.count_nonzero(composed_VB > TIE_TOLERANCE, axis=1)
        losses_V += np.count_nonzero(composed_VB < -TIE_TOLERANCE, axis=1)
    return tuple(
        Outcome(
            num_wins=wins,
            num_ties=len(margin_PR) - wins - losses,
            num_losses=losses,
            num_independent=number,
        )
        for wins, losses, number in zip(wins_V.tolist(), losses_V.tolist(), numbers, strict=True)
    )


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
