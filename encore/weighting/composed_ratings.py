"""Composed ratings: how pairs come out when the rules' margins are added up with weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.analysis.statistics import Z_95, Accuracy

# Suffixes: P pairs, R rules, V weight vectors, B pairs of one block.

#: A composed margin below this is a tie: margins that cancel (0.8 - 0.7 and 0.3 - 0.4 at equal
#: weights) leave some 1e-17 behind, which must not decide a pair.
TIE_TOLERANCE = 1e-12
#: Composed margins held at a time: 32 MB.
_BLOCK_CELLS = 4_000_000

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How many pairs a composed rating gets right, leaves open and gets wrong."""

    num_wins: int
    num_ties: int
    num_losses: int

    @property
    def accuracy(self) -> Accuracy:
        """Under each tie policy; None where there is no pair to count."""
        return Accuracy.from_counts(wins=self.num_wins, ties=self.num_ties, losses=self.num_losses)

    @property
    def interval(self) -> tuple[float, float] | tuple[None, None]:
        """The 95 % interval of half-credit accuracy; two None without pairs."""
        half, num_pairs = self.accuracy.half, self.num_wins + self.num_ties + self.num_losses
        if half is None:
            return None, None
        return half_credit_interval(half, tie_rate=self.num_ties / num_pairs, num_pairs=num_pairs)


def half_credit_interval(half: float, *, tie_rate: float, num_pairs: int) -> tuple[float, float]:
    """The 95 % score interval of half-credit accuracy over independent pairs.

    Wilson's interval with the variance that ties take away: a pair's credit is 0, 1/2 or 1, so its
    variance is a (1 - a) - tie_rate / 4. It holds all a with (a - half)² <= z² variance / n, and so
    neither leaves [0, 1] nor shrinks to a point when every pair is right.
    """
    c = Z_95**2 / num_pairs
    root = math.sqrt(max(c * (4 * half * (1 - half) - tie_rate + c * (1 - tie_rate)), 0.0))
    low = (2 * half + c - root) / (2 * (1 + c))
    high = (2 * half + c + root) / (2 * (1 + c))
    return max(low, 0.0), min(high, 1.0)


def composed_outcomes(margin_PR: _Floats, weight_VR: _Floats) -> tuple[Outcome, ...]:
    """The outcome of each weight vector over all pairs: one matrix product, in blocks of pairs.

    Args:
        margin_PR: rating(chosen) - rating(rejected), shape [P, R], none missing.
        weight_VR: Weight vectors, shape [V, R].
    """
    wins_V, losses_V = np.zeros((2, len(weight_VR)), dtype=np.int64)
    num_rows = max(_BLOCK_CELLS // max(len(weight_VR), 1), 1)
    for start in range(0, len(margin_PR), num_rows):
        composed_VB = weight_VR @ margin_PR[start : start + num_rows].T
        wins_V += np.count_nonzero(composed_VB > TIE_TOLERANCE, axis=1)
        losses_V += np.count_nonzero(composed_VB < -TIE_TOLERANCE, axis=1)
    return tuple(
        Outcome(num_wins=wins, num_ties=len(margin_PR) - wins - losses, num_losses=losses)
        for wins, losses in zip(wins_V.tolist(), losses_V.tolist(), strict=True)
    )


def pair_credits(composed_P: _Floats) -> _Floats:
    """1 for a pair that is right, 1/2 for a tie, 0 for one that is wrong; shape [P]."""
    right_P = (composed_P > TIE_TOLERANCE).astype(np.float64)
    return np.asarray((right_P + (composed_P >= -TIE_TOLERANCE)) / 2, dtype=np.float64)


def rule_margin_sds(margin_PR: _Floats) -> tuple[float | None, ...]:
    """Standard deviation (ddof 1) of each rule's margins that are there; None for fewer than two.

    Args:
        margin_PR: Shape [P, R]; NaN where a rating is missing.
    """
    known = [margin_P[~np.isnan(margin_P)] for margin_P in margin_PR.T]
    return tuple(float(np.std(one, ddof=1)) if len(one) > 1 else None for one in known)
