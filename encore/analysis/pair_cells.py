"""How often each rating of a chosen response stands against each of a rejected one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Suffixes: C cells, L levels, M = L + 1 states: a level, or at the end that the rating is missing.

_Floats = NDArray[np.float64]
_Counts = NDArray[np.int64]


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
    def num_cells(self) -> int:
        """C."""
        return len(self.num_pairs_C)

    @property
    def num_pairs(self) -> int:
        """All pairs."""
        return int(self.num_pairs_C.sum())

    @property
    def count_L(self) -> _Counts:
        """How many ratings each level has, shape [L]."""
        count_L = np.zeros(self.num_levels + 1, dtype=np.int64)
        np.add.at(count_L, self.chosen_C, self.num_pairs_C)
        np.add.at(count_L, self.rejected_C, self.num_pairs_C)
        return count_L[:-1]

    @property
    def num_ratings_CL(self) -> _Floats:
        """How many ratings of each level a pair of each cell has: 0, 1 or 2; shape [C, L]."""
        state_MM = np.eye(self.num_levels + 1)
        return (state_MM[self.chosen_C] + state_MM[self.rejected_C])[:, :-1]


def cells_of_counts(num_pairs_MM: _Counts) -> PairCells:
    """The cells with pairs in them.

    Args:
        num_pairs_MM: Pairs by the state of the chosen, then of the rejected response, shape [M, M].
    """
    chosen_C, rejected_C = np.nonzero(num_pairs_MM)
    return PairCells(
        num_levels=len(num_pairs_MM) - 1,
        chosen_C=chosen_C,
        rejected_C=rejected_C,
        num_pairs_C=num_pairs_MM[chosen_C, rejected_C],
    )


def without_order(cells: PairCells) -> PairCells:
    """The same pairs, counted by their two ratings whichever response has which."""
    num_states = cells.num_levels + 1
    low_C = np.minimum(cells.chosen_C, cells.rejected_C)
    high_C = np.maximum(cells.chosen_C, cells.rejected_C)
    key_C, place_C = np.unique(low_C * num_states + high_C, return_inverse=True)
    num_pairs_C = np.zeros(len(key_C), dtype=np.int64)
    np.add.at(num_pairs_C, place_C, cells.num_pairs_C)
    first_C, second_C = np.divmod(key_C, num_states)
    return PairCells(
        num_levels=cells.num_levels,
        chosen_C=first_C,
        rejected_C=second_C,
        num_pairs_C=num_pairs_C,
    )
