"""Code ratings as whole numbers, so that the entropies of many samples of pairs cost little."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

# Suffixes: P pairs, R rules, L levels of the rule that has most, N drawn pairs; 2 before PR: chosen
# and rejected.

_Floats = NDArray[np.float64]
_Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LevelCodes:
    """The level of every rating of every pair, as an index into one histogram over all rules.

    Attributes:
        code_P2R: Histogram cell of each rating, level * R + rule, and L * R for a missing rating.
            Shape [P, 2R]: chosen responses under every rule, then rejected ones.
        num_levels: L, the number of levels of the rule that has most.
        num_rules: R, the number of rules.
    """

    code_P2R: NDArray[np.int32]
    num_levels: int
    num_rules: int

    @classmethod
    def from_ratings(cls, rating_2PR: _Floats) -> LevelCodes:
        """Return the codes of ratings of chosen and rejected responses; NaN is missing."""
        _, num_pairs, num_rules = rating_2PR.shape
        rating_P2R = rating_2PR.transpose(1, 0, 2)
        code_P2R = np.empty(rating_P2R.shape, dtype=np.int32)
        for rule_index in range(num_rules):
            level_P2 = np.unique(rating_P2R[:, :, rule_index], return_inverse=True)[1]
            code_P2R[:, :, rule_index] = level_P2 * num_rules + rule_index
        num_levels = int(code_P2R.max()) // num_rules + 1
        code_P2R[np.isnan(rating_P2R)] = num_levels * num_rules
        return cls(
            code_P2R=code_P2R.reshape(num_pairs, -1), num_levels=num_levels, num_rules=num_rules
        )

    def histogram(self, pair_index_N: NDArray[np.intp] | slice = slice(None)) -> _Counts:
        """Return the number of ratings of each level and rule, shape [L, R].

        Args:
            pair_index_N: Indices of pairs; a repeated index counts again. All pairs by default.
        """
        num_cells = self.num_levels * self.num_rules
        count = np.bincount(self.code_P2R[pair_index_N].ravel(), minlength=num_cells + 1)
        return count[:num_cells].reshape(self.num_levels, -1)


def rule_entropies(count_LR: _Counts) -> _Floats:
    """Return the entropy in nats of each rule of a histogram, shape [R]; NaN without ratings.

    It is for the many samples of pairs that intervals draw. A figure that is reported comes from
    ``rule_statistics.sql``, which gives the same but for rounding.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(entr(count_LR / count_LR.sum(axis=0)).sum(axis=0), dtype=np.float64)
