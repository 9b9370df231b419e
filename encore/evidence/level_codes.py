"""Ratings as whole numbers, so that the entropies of many samples of pairs cost little."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Suffixes: P pairs, R rules, N rows taken, L cells: one for each level of each rule, the rules one
# after another.

_Floats = NDArray[np.float64]
_Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LevelCodes:
    """The level of every rating of every pair, as an index into one histogram over all rules.

    Attributes:
        code_P2R: The cell of each rating, chosen ones under every rule, then rejected ones, shape
            [P, 2R]; ``num_cells`` where it is missing.
        first_cell_R: Where each rule's cells begin, shape [R]. The first one is empty.
        num_cells: L.
    """

    code_P2R: NDArray[np.int32]
    first_cell_R: NDArray[np.intp]
    num_cells: int

    @classmethod
    def of(cls, rating_2PR: _Floats) -> LevelCodes:
        """The codes of ratings of chosen and rejected responses; NaN is missing."""
        code_2PR = np.full(rating_2PR.shape, -1, dtype=np.int32)
        first_cells = []
        num_cells = 0
        for place in range(rating_2PR.shape[2]):
            rating_2P = rating_2PR[:, :, place]
            is_there_2P = ~np.isnan(rating_2P)
            levels, level = np.unique(rating_2P[is_there_2P], return_inverse=True)
            code_2PR[is_there_2P, place] = num_cells + 1 + level
            first_cells.append(num_cells)
            num_cells += 1 + len(levels)
        code_2PR[code_2PR < 0] = num_cells
        code_P2R = np.ascontiguousarray(code_2PR.transpose(1, 0, 2)).reshape(len(code_2PR[0]), -1)
        return cls(
            code_P2R=code_P2R,
            first_cell_R=np.array(first_cells, dtype=np.intp),
            num_cells=num_cells,
        )

    def count(self, row_N: NDArray[np.intp] | slice = slice(None)) -> _Counts:
        """The histogram of some pairs, with repetition if a pair is named repeatedly; shape [L]."""
        code_N = self.code_P2R[row_N].ravel()
        return np.bincount(code_N, minlength=self.num_cells + 1)[: self.num_cells]

    def by_rule(self, count_L: _Counts) -> _Counts:
        """Sums over the cells of each rule, shape [R]."""
        return np.asarray(np.add.reduceat(count_L, self.first_cell_R), dtype=np.int64)

    def entropies(self, count_L: _Counts) -> _Floats:
        """Entropy in nats of each rule in a histogram, shape [R]; NaN for a rule without ratings.

        With n ratings and c of each level it is ln n - sum(c ln c) / n.
        """
        mass_L = count_L * np.log(np.maximum(count_L, 1))
        num_R = self.by_rule(count_L)
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy_R = np.log(num_R) - np.add.reduceat(mass_L, self.first_cell_R) / num_R
        return np.asarray(np.maximum(entropy_R, 0.0), dtype=np.float64)
