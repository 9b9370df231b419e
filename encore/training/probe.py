"""Heads on a frozen backbone: ridge regression of ratings, logistic regression of preferences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from encore.errors import EncoreError, InputError
from encore.training.ridge import ROWS_PER_BLOCK, RidgeFit, solve_ridge

# Suffixes: N responses, P pairs, D hidden, R heads, S penalties.

#: Penalties of the ridge to choose from, as multiples of the mean eigenvalue of X'X: from no
#: shrinkage to almost nothing left.
RIDGE_PENALTIES: tuple[float, ...] = tuple(np.logspace(-6, 4, 21).tolist())
#: Penalties of the Bradley-Terry probe, for differences of mean square 1.
BRADLEY_TERRY_PENALTIES: tuple[float, ...] = tuple(np.logspace(-4, 2, 13).tolist())
_NUM_FOLDS = 5
_SMALL_GRADIENT = 1e-5

_Floats = NDArray[np.float64]
_AnyFloats = NDArray[np.float32] | NDArray[np.float64]
_Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BradleyTerryFit:
    """A linear reward without intercept, learnt from preferences.

    Attributes:
        head_D: Its weights, shape [D].
        penalty: The penalty chosen, as in `BRADLEY_TERRY_PENALTIES`.
        held_out_loss_S: Mean loss on held-out pairs under each penalty; empty where there was only
            one to choose from.
    """

    head_D: _Floats
    penalty: float
    held_out_loss_S: _Floats


def fit_ridge(
    hidden_ND: _AnyFloats,
    target_NR: _AnyFloats,
    *,
    penalties: Sequence[float] = RIDGE_PENALTIES,
    is_held_out_N: _Mask | None = None,
) -> _Floats:
    """Weights of linear heads without any constant, shape [R, D]; see `fit_ridge_with_offsets`.

    A constant that the targets need (ratings that are centred while embeddings are not) then comes
    out of the embeddings themselves, as far as they hold one.
    """
    _check_penalties(penalties)
    _check_embeddings(hidden_ND)
    fit = solve_ridge(
        hidden_ND,
        target_NR,
        penalty_S=np.array(penalties, dtype=np.float64),
        is_held_out_N=is_held_out_N,
        has_offset=False,
    )
    return fit.head_RD


def fit_ridge_with_offsets(
    hidden_ND: _AnyFloats,
    target_NR: _AnyFloats,
    *,
    penalties: Sequence[float] = RIDGE_PENALTIES,
    is_held_out_N: _Mask | None = None,
) -> RidgeFit:
    """Linear heads by ridge regression in closed form, each with a constant beside it.

    Every head is fitted to the rows that have its target, in float64. Its penalty is the one with
    the least generalised cross-validation error, n |y - Xw|² / (n - parameters fitted)² (Golub,
    Heath and Wahba, 1979), or with the least error on held-out rows, after which the head is
    fitted to all its rows. Constants are not shrunk. They rank nothing: `splits.move_centres`
    makes them part of the centres, so that heads stay free of bias and fold exactly.

    Args:
        hidden_ND: What the heads read, shape [N, D].
        target_NR: Centred targets, shape [N, R]; NaN where one is missing.
        penalties: To choose from, as multiples of the mean eigenvalue of X'X.
        is_held_out_N: Rows to choose the penalty by, shape [N]; best whole prompt groups. None:
            generalised cross-validation.

    Raises:
        InputError: A head without a target, penalties that are not positive, embeddings that are
            not finite.
    """
    _check_penalties(penalties)
    _check_embeddings(hidden_ND)
    return solve_ridge(
        hidden_ND,
        target_NR,
        penalty_S=np.array(penalties, dtype=np.float64),
        is_held_out_N=is_held_out_N,
        has_offset=True,
    )


def fit_bradley_terry(
    chosen_PD: _AnyFloats,
    rejected_PD: _AnyFloats,
    *,
    group_P: NDArray[np.int64] | None = None,
    penalties: Sequence[float] = BRADLEY_TERRY_PENALTIES,
    seed: int = 0,
) -> BradleyTerryFit:
    """The linear reward that best tells the preferred from the other response.

    Logistic regression on the differences of embeddings, without intercept: it minimises the mean
    of log(1 + exp(-w (chosen - rejected))) (the paper's Bradley-Terry objective) plus penalty / 2
    |w|². The penalty is the one with the least loss in a cross-validation of five folds.

    Args:
        chosen_PD: Embeddings of the preferred responses, shape [P, D].
        rejected_PD: Embeddings of the other responses.
        group_P: Pairs of one group are never parted between folds (None: every pair by itself).
        penalties: To choose from, for differences scaled to mean square 1.
        seed: Draws the folds.

    Raises:
        InputError: Fewer than two groups, penalties that are not positive, embeddings that are not
            finite, pairs whose embeddings are all equal.
        EncoreError: No optimum found.
    """
    _check_penalties(penalties)
    _check_embeddings(chosen_PD)
    _check_embeddings(rejected_PD)
    difference_PD = np.subtract(chosen_PD, rejected_PD, dtype=np.float64)
    scale = float(np.sqrt(np.square(difference_PD).mean())) if difference_PD.size else 0.0
    if scale == 0:
        raise InputError(
            f"bradley-terry probe: the embeddings of chosen and rejected are equal in all "
            f"{len(difference_PD)} pairs, so there is nothing to learn; check the backbone's "
            "pooling and max_length"
        )
    difference_PD /= scale
    losses_S = np.empty(0)
    penalty = float(penalties[0])
    if len(penalties) > 1:
        groups = np.arange(len(difference_PD)) if group_P is None else group_P
        losses_S = _held_out_losses(difference_PD, groups, penalties=penalties, seed=seed)
        penalty = float(penalties[int(losses_S.argmin())])
    head_D = _logistic(difference_PD, penalty=penalty, start_D=None)
    return BradleyTerryFit(head_D=head_D / scale, penalty=penalty, held_out_loss_S=losses_S)


def _held_out_losses(
    difference_PD: _Floats, group_P: NDArray[np.int64], *, penalties: Sequence[float], seed: int
) -> _Floats:
    """Mean loss on held-out pairs under each penalty, shape [S]."""
    groups, index_P = np.unique(group_P, return_inverse=True)
    if len(groups) < 2:
        raise InputError(
            f"bradley-terry probe: {len(groups)} group of pairs; expected two or more to choose "
            "the penalty by, or a single penalty"
        )
    num_folds = min(_NUM_FOLDS, len(groups))
    fold_G = np.random.default_rng(seed).permutation(len(groups)) % num_folds
    fold_P = fold_G[index_P]
    total_S = np.zeros(len(penalties))
    descending = np.argsort(-np.array(penalties))
    for fold in range(num_folds):
        seen_PD, held_out_PD = difference_PD[fold_P != fold], difference_PD[fold_P == fold]
        head_D = None
        for place in descending:  # each optimum is near the one before
            head_D = _logistic(seen_PD, penalty=penalties[place], start_D=head_D)
            total_S[place] += np.logaddexp(0.0, -(held_out_PD @ head_D)).sum()
    return total_S / len(difference_PD)


def _logistic(difference_PD: _Floats, *, penalty: float, start_D: _Floats | None) -> _Floats:
    """The weights of least penalised loss; the problem is convex, so there is one optimum."""
    from scipy.optimize import minimize
    from scipy.special import expit

    num_pairs, num_hidden = difference_PD.shape

    def loss_and_gradient(head_D: _Floats) -> tuple[float, _Floats]:
        margin_P = difference_PD @ head_D
        loss = np.logaddexp(0.0, -margin_P).mean() + penalty / 2 * (head_D @ head_D)
        gradient_D = penalty * head_D - expit(-margin_P) @ difference_PD / num_pairs
        return float(loss), gradient_D

    found = minimize(
        loss_and_gradient,
        np.zeros(num_hidden) if start_D is None else start_D,
        method="L-BFGS-B",
        jac=True,
        options={"maxiter": 5000, "maxfun": 10_000, "gtol": 1e-7, "ftol": 1e-13},
    )
    # Rounding may end the search before its own criterion is met.
    if not found.success and np.abs(found.jac).max() > _SMALL_GRADIENT:
        raise EncoreError(
            f"bradley-terry probe: no optimum under penalty {penalty:g} ({found.message}); give "
            "larger penalties"
        )
    return np.asarray(found.x, dtype=np.float64)


def _check_penalties(penalties: Sequence[float]) -> None:
    if not penalties or not all(0 < penalty < np.inf for penalty in penalties):
        raise InputError(f"penalties {list(penalties)}: expected at least one, each above 0")


def _check_embeddings(hidden_ND: _AnyFloats) -> None:
    for start in range(0, len(hidden_ND), ROWS_PER_BLOCK):
        is_finite_N = np.isfinite(hidden_ND[start : start + ROWS_PER_BLOCK]).all(axis=1)
        if not is_finite_N.all():
            row = start + int(is_finite_N.argmin())
            raise InputError(
                f"embedding {row} of {len(hidden_ND)} is not finite; the backbone overflows on it: "
                "load it with dtype float32 or bfloat16"
            )
