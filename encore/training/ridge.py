"""Second moments of embeddings and targets: all that ridge regression needs, however many rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Suffixes: N responses, D hidden, K heads, S penalties.

#: Rows that are widened to float64 at a time.
ROWS_PER_BLOCK = 8192

_Floats = NDArray[np.float64]
_AnyFloats = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """What is known of X [n, D] and y [n, K], in the basis V of X'X = V diag(e) V'.

    Attributes:
        num_rows: n.
        eigenvalue_D: e, none negative.
        basis_DD: V.
        product_DK: V'X'y.
        square_K: y'y.
    """

    num_rows: int
    eigenvalue_D: _Floats
    basis_DD: _Floats
    product_DK: _Floats
    square_K: _Floats

    def heads(self, penalty_K: _Floats) -> _Floats:
        """The weights of each head under its penalty, shape [K, D]."""
        damped_DK = self.product_DK / (self.eigenvalue_D[:, None] + self._scale * penalty_K)
        return np.asarray((self.basis_DD @ damped_DK).T)

    def gcv_errors(self, penalty_S: _Floats) -> _Floats:
        """Generalised cross-validation error of each head under each penalty, shape [S, K]."""
        errors = []
        for ridge in (self._scale * penalty_S).tolist():
            kept_D = self.eigenvalue_D / (self.eigenvalue_D + ridge)
            # |y - Xw|² = y'y - sum of (V'X'y)² (2 - kept) / (e + ridge)
            gain_D = (2 - kept_D) / (self.eigenvalue_D + ridge)
            residual_K = np.maximum(self.square_K - gain_D @ self.product_DK**2, 0.0)
            freedom = max(self.num_rows - float(kept_D.sum()), 1e-9 * self.num_rows)
            errors.append(self.num_rows * residual_K / freedom**2)
        return np.array(errors)

    @property
    def _scale(self) -> float:
        """What a penalty of 1 is: the mean eigenvalue; 1 where all embeddings are zero."""
        return float(self.eigenvalue_D.mean()) or 1.0


def moments_of(hidden_ND: _AnyFloats, target_NK: _AnyFloats, rows: NDArray[np.intp]) -> Moments:
    """The moments of some rows.

    Args:
        hidden_ND: X, shape [N, D].
        target_NK: y, shape [N, K], none missing in these rows.
        rows: Which rows count.
    """
    num_hidden, num_heads = hidden_ND.shape[1], target_NK.shape[1]
    gram_DD = np.zeros((num_hidden, num_hidden))
    product_DK = np.zeros((num_hidden, num_heads))
    square_K = np.zeros(num_heads)
    for start in range(0, len(rows), ROWS_PER_BLOCK):
        block = rows[start : start + ROWS_PER_BLOCK]
        hidden = hidden_ND[block].astype(np.float64)
        target = target_NK[block].astype(np.float64)
        gram_DD += hidden.T @ hidden
        product_DK += hidden.T @ target
        square_K += np.square(target).sum(axis=0)
    eigenvalue_D, basis_DD = np.linalg.eigh(gram_DD)
    return Moments(
        num_rows=len(rows),
        eigenvalue_D=np.maximum(eigenvalue_D, 0.0),
        basis_DD=basis_DD,
        product_DK=basis_DD.T @ product_DK,
        square_K=square_K,
    )
