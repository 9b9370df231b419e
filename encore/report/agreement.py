"""How often rules side with the same response of a pair."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.pair_ratings import PairRatings

# Suffixes: P pairs, R rules.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RuleAgreement:
    """Agreement of the rules, two by two.

    Attributes:
        num_pairs: All pairs.
        sign_gram_RR: S'S with S = sign(chosen - rejected), one row per pair and 0 where the
            ratings tie or one is missing, shape [R, R]. The diagonal counts untied pairs.
    """

    num_pairs: int
    sign_gram_RR: NDArray[np.int64]

    @property
    def cosine_RR(self) -> NDArray[np.float64]:
        """Cosine of the signs of each two rules; NaN for a rule that never decides."""
        gram_RR = self.sign_gram_RR.astype(np.float64)
        norm_R = np.sqrt(np.diag(gram_RR))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(gram_RR / np.outer(norm_R, norm_R), dtype=np.float64)


def rule_agreement_of(pairs: PairRatings) -> RuleAgreement:
    """The agreement of the rules of some pairs, in their order."""
    # Sums of signs are whole numbers far below 2^53: exact in floating point.
    sign_PR = np.nan_to_num(np.sign(pairs.margin_PR))
    gram_RR = np.rint(sign_PR.T @ sign_PR).astype(np.int64)
    return RuleAgreement(num_pairs=pairs.num_pairs, sign_gram_RR=gram_RR)
