"""Ratings as whole numbers, so that the entropies of many samples of pairs cost little."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encore.pair_ratings import PairRatings

# Suffixes: P pairs, R rules, C = 2R columns (chosen under every rule, then rejected), N rows taken,
# L cells: one for each level of each rule, and a first one for each rule (see `level_codes`).

_Floats = NDArray[np.float64]
_Counts = NDArray[np.int64]

#: Counting turns codes into 8-byte numbers: this many pairs at a time keep that small.
_BLOCK_PAIRS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LevelCodes:
    """The level of every rating of every pair, as an index into one histogram over all rules.

    Attributes:
        code_PC: The cell of each rating, shape [P, 2R]; ``num_cells`` where it is missing.
        first_cell_R: Where each rule's cells begin, shape [R]. In the first one stand levels that
            occur once, if `level_codes` was told to put them together; it is empty otherwise.
        num_cells: L.
    """

    code_PC: NDArray[np.uint16] | NDArray[np.int32]
    first_cell_R: NDArray[np.intp]
    num_cells: int

    @property
    def num_pairs(self) -> int:
        """P."""
        return len(self.code_PC)

    def count(self, row_N: NDArray[np.intp] | slice) -> _Counts:
        """The histogram of some pairs, with repetition if a pair is named repeatedly; shape [L]."""
        code_N = self.code_PC[row_N].ravel()
        return np.bincount(code_N, minlength=self.num_cells + 1)[: self.num_cells]

    def count_all(self) -> _Counts:
        """The histogram of all pairs, shape [L]."""
        count_L = np.zeros(self.num_cells, dtype=np.int64)
        for start in range(0, self.num_pairs, _BLOCK_PAIRS):
            count_L += self.count(slice(start, start + _BLOCK_PAIRS))
        return count_L

    def num_ratings(self, count_L: _Counts) -> _Counts:
        """Ratings of each rule in a histogram, shape [R]."""
        return np.asarray(np.add.reduceat(count_L, self.first_cell_R), dtype=np.int64)

    def entropies(self, count_L: _Counts) -> _Floats:
        """Entropy in nats of each rule in a histogram, shape [R]; NaN for a rule without ratings.

        With n ratings and c of each level it is ln n - sum(c ln c) / n.
        """
        mass_L = count_L * np.log(np.maximum(count_L, 1))
        mass_L[self.first_cell_R] = 0.0  # levels that occur once: c ln c = 0 for each of them
        num_R = self.num_ratings(count_L)
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy_R = np.log(num_R) - np.add.reduceat(mass_L, self.first_cell_R) / num_R
        return np.asarray(np.maximum(entropy_R, 0.0), dtype=np.float64)


def level_codes(pairs: PairRatings, *, with_replacement: bool) -> LevelCodes:
    """Encode the ratings of pairs.

    Args:
        pairs: The ratings; NaN is missing.
        with_replacement: Whether a pair may be counted repeatedly. If not, a level that occurs
            once in all the ratings of its rule cannot occur twice in any sample, so such levels
            need no cells of their own; ratings that never repeat then cost nothing.
    """
    num_rules = len(pairs.rule_ids)
    code_PC = np.empty((pairs.num_pairs, 2 * num_rules), dtype=np.int32)
    first_cells = []
    num_cells = 0
    for place in range(num_rules):
        rating_N = np.concatenate([pairs.chosen_PR[:, place], pairs.rejected_PR[:, place]])
        cell_N, num_rule_cells = _cells(rating_N, with_replacement=with_replacement)
        cell_N[cell_N >= 0] += num_cells
        code_PC[:, place] = cell_N[: pairs.num_pairs]
        code_PC[:, num_rules + place] = cell_N[pairs.num_pairs :]
        first_cells.append(num_cells)
        num_cells += num_rule_cells
    code_PC[code_PC < 0] = num_cells
    is_small = num_cells <= np.iinfo(np.uint16).max
    return LevelCodes(
        code_PC=code_PC.astype(np.uint16) if is_small else code_PC,
        first_cell_R=np.array(first_cells, dtype=np.intp),
        num_cells=num_cells,
    )


def _cells(rating_N: _Floats, *, with_replacement: bool) -> tuple[NDArray[np.int32], int]:
    """The cell of each rating of one rule, -1 where it is missing; and the number of cells."""
    # Adding 0 makes -0.0 and 0.0 one level, as they are everywhere else.
    encoded = pa.array(rating_N + 0.0, from_pandas=True).dictionary_encode()
    level_N = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    is_there_N = level_N >= 0
    count = np.bincount(level_N[is_there_N], minlength=len(encoded.dictionary))
    has_cell = np.ones_like(count, dtype=bool) if with_replacement else count > 1
    cell_of_level = np.where(has_cell, np.cumsum(has_cell), 0)
    cell_N = np.full(len(rating_N), -1, dtype=np.int32)
    cell_N[is_there_N] = cell_of_level[level_N[is_there_N]]
    return cell_N, 1 + int(has_cell.sum())
