"""Ridge regression with missing targets, from second moments alone, however many rows there are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.errors import InputError

# Suffixes: N responses, D hidden, R heads, K heads of one pattern of missing targets, S penalties.

#: Rows that are widened to float64 at a time.
ROWS_PER_BLOCK = 8192

_Floats = NDArray[np.float64]
_AnyFloats = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RidgeFit:
    """Linear heads and their constants: target = head · embedding + offset.

    Attributes:
        head_RD: The heads' weights, shape [R, D].
        offset_R: The constants, shape [R].
    """

    head_RD: _Floats
    offset_R: _Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """What is known of X [n, D] and y [n, K], in the basis V of X'X = V diag(e) V'.

    With offsets, X and y are counted from their means.

    Attributes:
        num_rows: n.
        has_offset: Whether a constant is fitted beside each head.
        eigenvalue_D: e, none negative.
        basis_DD: V.
        product_DK: V'X'y.
        square_K: y'y.
        hidden_mean_D: Mean of X; 0 without offsets.
        target_mean_K: Mean of y; 0 without offsets.
    """

    num_rows: int
    has_offset: bool
    eigenvalue_D: _Floats
    basis_DD: _Floats
    product_DK: _Floats
    square_K: _Floats
    hidden_mean_D: _Floats
    target_mean_K: _Floats

    def heads(self, penalty_K: _Floats) -> _Floats:
        """The weights of each head under its penalty, shape [K, D]."""
        damped_DK = self.product_DK / (self.eigenvalue_D[:, None] + self._scale * penalty_K)
        return np.asarray((self.basis_DD @ damped_DK).T)

    def offsets(self, head_KD: _Floats) -> _Floats:
        """What to add to the heads' scores, shape [K]; 0 without offsets."""
        return np.asarray(self.target_mean_K - head_KD @ self.hidden_mean_D)

    def gcv_errors(self, penalty_S: _Floats) -> _Floats:
        """Generalised cross-validation error of each head under each penalty, shape [S, K]."""
        errors = []
        for ridge in (self._scale * penalty_S).tolist():
            kept_D = self.eigenvalue_D / (self.eigenvalue_D + ridge)
            # |y - Xw|² = y'y - sum of (V'X'y)² (2 - kept) / (e + ridge)
            gain_D = (2 - kept_D) / (self.eigenvalue_D + ridge)
            residual_K = np.maximum(self.square_K - gain_D @ self.product_DK**2, 0.0)
            num_fitted = float(kept_D.sum()) + self.has_offset
            freedom = max(self.num_rows - num_fitted, 1e-9 * self.num_rows)
            errors.append(self.num_rows * residual_K / freedom**2)
        return np.array(errors)

    @property
    def _scale(self) -> float:
        """What a penalty of 1 is: the mean eigenvalue; 1 where all embeddings are equal."""
        return float(self.eigenvalue_D.mean()) or 1.0


def solve_ridge(
    hidden_ND: _AnyFloats,
    target_NR: _AnyFloats,
    *,
    penalty_S: _Floats,
    is_held_out_N: NDArray[np.bool_] | None,
    has_offset: bool,
) -> RidgeFit:
    """Heads over the rows that have their targets, each under the best of some penalties.

    Args:
        hidden_ND: Shape [N, D].
        target_NR: Shape [N, R]; NaN where one is missing.
        penalty_S: To choose from, as multiples of the mean eigenvalue of X'X.
        is_held_out_N: Rows to choose by; None: generalised cross-validation.
        has_offset: Whether a constant is fitted beside each head.

    Raises:
        InputError: A head without a target, or without one on either side of the held-out rows.
    """
    assert len(hidden_ND) == len(target_NR)
    is_valid_NR = ~np.isnan(target_NR)
    head_RD = np.empty((target_NR.shape[1], hidden_ND.shape[1]))
    offset_R = np.empty(target_NR.shape[1])
    # Heads whose targets are there in the same rows share their moments.
    patterns, pattern_R = np.unique(is_valid_NR, axis=1, return_inverse=True)
    for place, is_valid_N in enumerate(patterns.T):
        heads = np.flatnonzero(pattern_R.reshape(-1) == place)
        if not is_valid_N.any():
            raise InputError(
                f"head {heads[0]}: none of the {len(is_valid_N)} responses has a target for it; "
                "leave the head out"
            )
        target_NK = target_NR[:, heads]
        rows = np.flatnonzero(is_valid_N)
        moments = moments_of(hidden_ND, target_NK, rows, has_offset=has_offset)
        if is_held_out_N is None:
            errors_SK = moments.gcv_errors(penalty_S)
        else:
            others, held_out = rows[~is_held_out_N[rows]], rows[is_held_out_N[rows]]
            errors_SK = _held_out_errors(
                hidden_ND, target_NK, others, held_out, penalty_S, has_offset=has_offset
            )
        head_KD = moments.heads(penalty_S[errors_SK.argmin(axis=0)])
        head_RD[heads], offset_R[heads] = head_KD, moments.offsets(head_KD)
    return RidgeFit(head_RD=head_RD, offset_R=offset_R)


def moments_of(
    hidden_ND: _AnyFloats, target_NK: _AnyFloats, rows: NDArray[np.intp], *, has_offset: bool
) -> Moments:
    """The moments of some rows.

    Args:
        hidden_ND: X, shape [N, D].
        target_NK: y, shape [N, K], none missing in these rows.
        rows: Which rows count, at least one.
        has_offset: Whether to count from means.
    """
    hidden_mean_D = np.zeros(hidden_ND.shape[1])
    target_mean_K = np.zeros(target_NK.shape[1])
    blocks = [rows[start : start + ROWS_PER_BLOCK] for start in range(0, len(rows), ROWS_PER_BLOCK)]
    if has_offset:  # taken off before anything is squared, so that no digits are lost
        for block in blocks:
            hidden_mean_D += hidden_ND[block].sum(axis=0, dtype=np.float64) / len(rows)
            target_mean_K += target_NK[block].sum(axis=0, dtype=np.float64) / len(rows)
    gram_DD = np.zeros((len(hidden_mean_D), len(hidden_mean_D)))
    product_DK = np.zeros((len(hidden_mean_D), len(target_mean_K)))
    square_K = np.zeros(len(target_mean_K))
    for block in blocks:
        hidden = hidden_ND[block] - hidden_mean_D
        target = target_NK[block] - target_mean_K
        gram_DD += hidden.T @ hidden
        product_DK += hidden.T @ target
        square_K += np.square(target).sum(axis=0)
    eigenvalue_D, basis_DD = np.linalg.eigh(gram_DD)
    return Moments(
        num_rows=len(rows),
        has_offset=has_offset,
        eigenvalue_D=np.maximum(eigenvalue_D, 0.0),
        basis_DD=basis_DD,
        product_DK=basis_DD.T @ product_DK,
        square_K=square_K,
        hidden_mean_D=hidden_mean_D,
        target_mean_K=target_mean_K,
    )


def _held_out_errors(
    hidden_ND: _AnyFloats,
    target_NK: _AnyFloats,
    others: NDArray[np.intp],
    held_out: NDArray[np.intp],
    penalty_S: _Floats,
    *,
    has_offset: bool,
) -> _Floats:
    """Mean squared error on held-out rows of heads fitted to the others, shape [S, K]."""
    if not len(others) or not len(held_out):
        raise InputError(
            f"ridge: {len(others)} responses to learn from and {len(held_out)} held out have a "
            "head's target; expected some of both"
        )
    moments = moments_of(hidden_ND, target_NK, others, has_offset=has_offset)
    errors = []
    for penalty in penalty_S.tolist():
        head_KD = moments.heads(np.full(target_NK.shape[1], penalty))
        score_NK = hidden_ND[held_out] @ head_KD.T + moments.offsets(head_KD)
        errors.append(np.square(score_NK - target_NK[held_out]).mean(axis=0))
    return np.array(errors, dtype=np.float64)
