"""Heads on a frozen backbone: ridge regression of ratings, logistic regression of preferences.

Scikit-learn's `RidgeCV` chooses its penalty by another criterion (leave-one-out) and knows no
missing targets; its `LogisticRegression` needs both classes. Hence numpy and scipy.

Suffixes: N responses, P pairs, D hidden, R heads, K heads whose targets are in the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from encore.core.errors import EncoreError, InputError
from encore.core.reporting import Reporter
from encore.training.batches import Training
from encore.training.pooled_states import embed

#: Penalties of the ridge to choose from, as multiples of the mean eigenvalue of X'X: from no
#: shrinkage to almost nothing left.
RIDGE_PENALTIES: tuple[float, ...] = tuple(np.logspace(-6, 4, 21).tolist())
#: Penalties of the Bradley-Terry probe, for differences of mean square 1.
BRADLEY_TERRY_PENALTIES: tuple[float, ...] = tuple(np.logspace(-4, 2, 13).tolist())
#: Rows that are widened to float64 at a time.
ROWS_PER_BLOCK = 8192
_NUM_FOLDS = 5
_SMALL_GRADIENT = 1e-5

_Floats = NDArray[np.float64]
_AnyFloats = NDArray[np.float32] | NDArray[np.float64]


def solve_heads(training: Training, *, cache: Path, reporter: Reporter) -> _Floats:
    """Put the best linear heads on the frozen backbone into the model.

    Hidden states are kept on disk as they come: a killed process loses at most one file of them.

    Args:
        training: The trunk is read, the heads are written.
        cache: The folder for hidden states.
        reporter: Hears of embedded pairs.

    Returns:
        What belongs to the heads' centres, shape [R]: see `move_centres`.
    """
    model, examples, config = training.model, training.examples, training.config
    row_P = training.split.train_rows
    state_PSD = embed(
        model,
        [(examples.chosen[row], examples.rejected[row]) for row in row_P],
        cache=cache,
        pad_token_id=training.pad_token_id,
        tokens_per_microbatch=config.tokens_per_microbatch,
        layout=config.layout,
        reporter=reporter,
    )
    if config.objective == "bradley-terry":
        head_D = fit_bradley_terry(
            state_PSD[:, 0] - state_PSD[:, 1], group_P=examples.group_P[row_P], seed=config.seed
        )
        head_RD, offset_R = head_D[np.newaxis], np.zeros(1)
    else:
        target_PSR = examples.target_PSR[row_P]
        head_RD, offset_R = fit_ridge(
            state_PSD.reshape(-1, model.hidden_size), target_PSR.reshape(-1, target_PSR.shape[2])
        )
    with torch.no_grad():
        model.heads.weight.copy_(torch.from_numpy(head_RD))
    return offset_R


def fit_ridge(
    hidden_ND: _AnyFloats, target_NR: _AnyFloats, *, penalties: Sequence[float] = RIDGE_PENALTIES
) -> tuple[_Floats, _Floats]:
    """Linear heads [R, D] by ridge regression in closed form, and a constant beside each, [R].

    Target = head · embedding + constant. Every head is fitted to the rows that have its target, in
    float64. Its penalty is the one with the least generalised cross-validation error,
    n |y - Xw|² / (n - parameters fitted)² (Golub, Heath and Wahba, 1979). Constants are not shrunk.
    They rank nothing: `move_centres` makes them part of the centres, so
    that heads stay free of bias and fold exactly.

    Args:
        hidden_ND: What the heads read, shape [N, D].
        target_NR: Centred targets, shape [N, R]; NaN where one is missing.
        penalties: To choose from, as multiples of the mean eigenvalue of X'X.

    Raises:
        InputError: A head without a target, embeddings that are not finite.
    """
    _check(hidden_ND)
    is_valid_NR = ~np.isnan(target_NR)
    head_RD = np.empty((target_NR.shape[1], hidden_ND.shape[1]))
    offset_R = np.empty(target_NR.shape[1])
    # Heads whose targets are in the same rows share a decomposition.
    patterns, pattern_R = np.unique(is_valid_NR, axis=1, return_inverse=True)
    for place, is_valid_N in enumerate(patterns.T):
        heads = np.flatnonzero(pattern_R.reshape(-1) == place)
        if not is_valid_N.any():
            raise InputError(
                f"head {heads[0]}: none of the {len(is_valid_N)} responses has a target for it; "
                "leave the head out"
            )
        target_NK = target_NR[:, heads]
        head_RD[heads], offset_R[heads] = _solve(hidden_ND, target_NK, is_valid_N, penalties)
    return head_RD, offset_R


def _solve(
    hidden_ND: _AnyFloats,
    target_NK: _AnyFloats,
    is_valid_N: NDArray[np.bool_],
    penalties: Sequence[float],
) -> tuple[_Floats, _Floats]:
    """Heads [K, D] and constants [K] over some rows, in the basis V of X'X = V diag(e) V'."""
    # Means are taken off before anything is squared, so that no digits are lost.
    rows = np.flatnonzero(is_valid_N)
    hidden_mean_D = hidden_ND.mean(axis=0, dtype=np.float64, where=is_valid_N[:, np.newaxis])
    target_mean_K = target_NK[rows].mean(axis=0, dtype=np.float64)
    target_NK = target_NK[rows] - target_mean_K
    gram_DD = np.zeros((len(hidden_mean_D), len(hidden_mean_D)))
    product_DK = np.zeros((len(hidden_mean_D), len(target_mean_K)))
    for start in range(0, len(rows), ROWS_PER_BLOCK):
        block = slice(start, start + ROWS_PER_BLOCK)
        hidden = hidden_ND[rows[block]] - hidden_mean_D
        gram_DD += hidden.T @ hidden
        product_DK += hidden.T @ target_NK[block]
    eigenvalue_D, basis_DD = np.linalg.eigh(gram_DD)
    eigenvalue_D = np.maximum(eigenvalue_D, 0.0)
    product_DK = basis_DD.T @ product_DK
    ridge_S = np.array(penalties) * (eigenvalue_D.mean() or 1.0)
    damped_SD = eigenvalue_D + ridge_S[:, np.newaxis]
    kept_SD = eigenvalue_D / damped_SD
    # |y - Xw|² = y'y - sum of (V'X'y)² (2 - kept) / (e + ridge)
    gain_SK = ((2 - kept_SD) / damped_SD) @ product_DK**2
    residual_SK = np.maximum(np.square(target_NK).sum(axis=0) - gain_SK, 0.0)
    freedom_S = np.maximum(len(rows) - kept_SD.sum(axis=1) - 1, 1e-9 * len(rows))
    best_K = (residual_SK / np.square(freedom_S)[:, np.newaxis]).argmin(axis=0)
    head_KD = (basis_DD @ (product_DK / damped_SD[best_K].T)).T
    return head_KD, target_mean_K - head_KD @ hidden_mean_D


def fit_bradley_terry(
    difference_PD: _AnyFloats,
    *,
    group_P: NDArray[np.int64],
    penalties: Sequence[float] = BRADLEY_TERRY_PENALTIES,
    seed: int = 0,
) -> _Floats:
    """The linear reward that best tells the preferred from the other response, shape [D].

    Logistic regression on the differences of embeddings, without intercept: it minimises the mean
    of log(1 + exp(-w (chosen - rejected))) (the paper's Bradley-Terry objective) plus penalty / 2
    |w|². The penalty is the one with the least loss in a cross-validation of five folds.

    Args:
        difference_PD: Embeddings of the preferred responses minus those of the others.
        group_P: Pairs of one group are never parted between folds.
        penalties: To choose from, for differences scaled to mean square 1.
        seed: Draws the folds.

    Raises:
        InputError: Fewer than two groups, embeddings that are not finite.
        EncoreError: No optimum found.
    """
    _check(difference_PD)
    scale = float(np.sqrt(np.square(difference_PD).mean(dtype=np.float64))) or 1.0
    scaled_PD = np.divide(difference_PD, scale, dtype=np.float64)
    penalty = _choose_penalty(scaled_PD, group_P, penalties=penalties, seed=seed)
    head_D, _ = minimise_logistic(scaled_PD, np.zeros(scaled_PD.shape[1]), penalty=penalty)
    return head_D / scale


def _choose_penalty(
    difference_PD: _Floats, group_P: NDArray[np.int64], *, penalties: Sequence[float], seed: int
) -> float:
    """The penalty of least loss on held-out groups of pairs."""
    groups, index_P = np.unique(group_P, return_inverse=True)
    if len(groups) < 2:
        raise InputError(
            f"bradley-terry probe: {len(groups)} group of pairs; expected two or more to choose "
            "the penalty by"
        )
    num_folds = min(_NUM_FOLDS, len(groups))
    fold_P = (np.random.default_rng(seed).permutation(len(groups)) % num_folds)[index_P]
    total_S = np.zeros(len(penalties))
    for fold in range(num_folds):
        seen_PD, held_out_PD = difference_PD[fold_P != fold], difference_PD[fold_P == fold]
        head_D = np.zeros(difference_PD.shape[1])
        for place in np.argsort(-np.array(penalties)):  # each optimum is near the one before
            head_D, _ = minimise_logistic(seen_PD, head_D, penalty=penalties[place])
            total_S[place] += np.logaddexp(0.0, -(held_out_PD @ head_D)).sum()
    return penalties[int(total_S.argmin())]


def minimise_logistic(
    feature_PD: _Floats, start_D: _Floats, *, penalty: float = 0.0, most: float | None = None
) -> tuple[_Floats, float]:
    """The weights of least mean log(1 + exp(-weights · features)) + penalty / 2 |weights|².

    The problem is convex, so there is one optimum.

    Args:
        feature_PD: Of the preferred response minus those of the other one.
        start_D: Where the search begins.
        penalty: On the squared norm.
        most: Bounds every weight: from 0 to this. None: no bounds.

    Returns:
        The weights and their loss.
    """

    def loss_and_gradient(head_D: _Floats) -> tuple[float, _Floats]:
        margin_P = feature_PD @ head_D
        loss = np.logaddexp(0.0, -margin_P).mean() + penalty / 2 * (head_D @ head_D)
        gradient_D = penalty * head_D - expit(-margin_P) @ feature_PD / len(feature_PD)
        return float(loss), gradient_D

    found = minimize(
        loss_and_gradient,
        start_D,
        method="L-BFGS-B",
        jac=True,
        bounds=None if most is None else [(0, most)] * len(start_D),
        options={"maxiter": 5000, "maxfun": 10_000, "gtol": 1e-7, "ftol": 1e-13},
    )
    # Rounding may end the search before its own criterion is met.
    if most is None and not found.success and np.abs(found.jac).max() > _SMALL_GRADIENT:
        raise EncoreError(
            f"bradley-terry probe: no optimum under penalty {penalty:g} ({found.message}); give "
            "larger penalties"
        )
    return np.asarray(found.x, dtype=np.float64), float(found.fun)


def _check(hidden_ND: _AnyFloats) -> None:
    is_finite_N = np.isfinite(hidden_ND).all(axis=1)
    if not is_finite_N.all():
        raise InputError(
            f"embedding {is_finite_N.argmin()} of {len(hidden_ND)} is not finite; the backbone "
            "overflows on it: load it with dtype float32 or bfloat16"
        )
