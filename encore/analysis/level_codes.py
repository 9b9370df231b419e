"""Ratings as whole numbers, so that the entropies of many samples of pairs cost little."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

# Suffixes: P pairs, R rules, L levels of the rule that has most, N rows taken; 2 before PR: chosen
# and rejected.

_Floats = NDArray[np.float64]
_Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LevelCodes:
    """The level of every rating of every pair, as an index into one histogram over all rules.

    Attributes:
        code_P2R: The cell of each rating, level * R + rule, chosen ones under every rule, then
            rejected ones, shape [P, 2R]; L * R where it is missing.
        num_levels: L.
        num_rules: R.
    """

    code_P2R: NDArray[np.int32]
    num_levels: int
    num_rules: int

    @classmethod
    def of(cls, rating_2PR: _Floats) -> LevelCodes:
        """The codes of ratings of chosen and rejected responses; NaN is missing."""
        _, num_pairs, num_rules = rating_2PR.shape
        rating_P2R = rating_2PR.transpose(1, 0, 2)
        code_P2R = np.empty(rating_P2R.shape, dtype=np.int32)
        for place in range(num_rules):
            level_P2 = np.unique(rating_P2R[:, :, place], return_inverse=True)[1]
            code_P2R[:, :, place] = level_P2 * num_rules + place
        num_levels = int(code_P2R.max()) // num_rules + 1
        code_P2R[np.isnan(rating_P2R)] = num_levels * num_rules
        return cls(
            code_P2R=code_P2R.reshape(num_pairs, -1), num_levels=num_levels, num_rules=num_rules
        )

    def count(self, row_N: NDArray[np.intp] | slice = slice(None)) -> _Counts:
        """The histograms of some pairs, each as often as it is named; shape [L, R]."""
        num_cells = self.num_levels * self.num_rules
        count = np.bincount(self.code_P2R[row_N].ravel(), minlength=num_cells + 1)
        return count[:num_cells].reshape(self.num_levels, -1)


def rule_entropies(count_LR: _Counts) -> _Floats:
    """Entropy in nats of each rule in a histogram, shape [R]; NaN for a rule without ratings."""
    with np.errstate(invalid="ignore"):
        return np.asarray(entr(count_LR / count_LR.sum(axis=0)).sum(axis=0), dtype=np.float64)
