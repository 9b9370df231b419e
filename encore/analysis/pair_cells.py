"""How pairs came out under each rule: what accuracies, null distributions and resampling need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Suffixes: R rules, C cells, L levels, M = L + 1 states: a level, or at the end that the rating is
# missing.

_Floats = NDArray[np.float64]
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

    def of_rules(self, places: Sequence[int]) -> PairOutcomes:
        """The outcomes of some rules, in the order of ``places``."""
        return PairOutcomes(
            num_pairs=self.num_pairs,
            wins_R=self.wins_R[places],
            losses_R=self.losses_R[places],
            ties_R=self.ties_R[places],
            sign_gram_RR=self.sign_gram_RR[np.ix_(places, places)],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairCells:
    """The pairs of one rule counted by their two ratings: what resampling whole pairs must know.

    Every pair of the source stands in one cell, also one that the rule did not rate.

    Attributes:
        num_levels: L; levels are numbered from 0, ascending.
        chosen_C: The level of the chosen response in each cell, shape [C]; L where it is missing.
        rejected_C: The same of the rejected response.
        num_pairs_C: Pairs in each cell, shape [C]; never 0.
    """

    num_levels: int
    chosen_C: NDArray[np.intp]
    rejected_C: NDArray[np.intp]
    num_pairs_C: _Counts

    @property
    def num_pairs(self) -> int:
        """All pairs."""
        return int(self.num_pairs_C.sum())

    @property
    def num_ratings_CL(self) -> _Floats:
        """How many ratings of each level a pair of each cell has: 0, 1 or 2; shape [C, L]."""
        state_MM = np.eye(self.num_levels + 1)
        return (state_MM[self.chosen_C] + state_MM[self.rejected_C])[:, :-1]

    @property
    def count_L(self) -> _Counts:
        """How many ratings each level has, shape [L]."""
        states_2C = np.concatenate([self.chosen_C, self.rejected_C])
        count_M = np.bincount(
            states_2C, np.tile(self.num_pairs_C, 2), minlength=self.num_levels + 1
        )
        return count_M[:-1].astype(np.int64)

    @classmethod
    def of_counts(cls, num_pairs_MM: _Counts) -> PairCells:
        """The cells with pairs in them.

        Args:
            num_pairs_MM: Pairs by the state of the chosen, then of the rejected response.
        """
        chosen_C, rejected_C = np.nonzero(num_pairs_MM)
        return cls(
            num_levels=len(num_pairs_MM) - 1,
            chosen_C=chosen_C,
            rejected_C=rejected_C,
            num_pairs_C=num_pairs_MM[chosen_C, rejected_C],
        )

    def without_order(self) -> PairCells:
        """The same pairs, counted by their two ratings whichever response has which."""
        num_states = self.num_levels + 1
        low_C = np.minimum(self.chosen_C, self.rejected_C)
        high_C = np.maximum(self.chosen_C, self.rejected_C)
        key_C, place_C = np.unique(low_C * num_states + high_C, return_inverse=True)
        first_C, second_C = np.divmod(key_C, num_states)
        return PairCells(
            num_levels=self.num_levels,
            chosen_C=first_C,
            rejected_C=second_C,
            num_pairs_C=np.bincount(place_C, self.num_pairs_C).astype(np.int64),
        )
