"""How pairs came out under each rule: all that accuracies and their null distribution need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Suffix: R rules.

_Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairOutcomes:
    """Wins, losses and ties of each rule, and how often two rules agree.

    Attributes:
        num_pairs: All pairs, also those that a rule did not rate fully.
        wins_R: Pairs whose chosen response the rule rates higher, shape [R].
        losses_R: Pairs whose rejected response it rates higher, shape [R].
        ties_R: Pairs with two equal ratings, shape [R].
        sign_gram_RR: S'S with S = sign(chosen - rejected), one row per pair and 0 where a rating
            is missing, shape [R, R].
    """

    num_pairs: int
    wins_R: _Counts
    losses_R: _Counts
    ties_R: _Counts
    sign_gram_RR: _Counts


def take_rules(outcomes: PairOutcomes, places: Sequence[int]) -> PairOutcomes:
    """The outcomes of some rules, in the order of ``places``."""
    return PairOutcomes(
        num_pairs=outcomes.num_pairs,
        wins_R=outcomes.wins_R[places],
        losses_R=outcomes.losses_R[places],
        ties_R=outcomes.ties_R[places],
        sign_gram_RR=outcomes.sign_gram_RR[np.ix_(places, places)],
    )
