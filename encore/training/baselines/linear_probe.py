"""Solve heads on a frozen backbone: ridge regression of ratings, logistic regression of pairs.

Numpy and scipy are used, because scikit-learn does not fit: its `RidgeCV` chooses the penalty by
another criterion (leave-one-out) and does not accept missing targets, and its `LogisticRegression`
needs both classes.

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

#: Candidate penalties of the ridge regression, as multiples of the mean eigenvalue of X'X. They
#: range from no shrinkage to almost complete shrinkage.
RIDGE_PENALTIES: tuple[float, ...] = tuple(np.logspace(-6, 4, 21).tolist())
#: Candidate penalties of the Bradley-Terry probe, for differences with a mean square of 1.
BRADLEY_TERRY_PENALTIES: tuple[float, ...] = tuple(np.logspace(-4, 2, 13).tolist())
#: Number of rows that are converted to float64 at a time.
ROWS_PER_BLOCK = 8192
_NUM_FOLDS = 5
#: Largest gradient at which a search that stopped early counts as converged.
_SMALL_GRADIENT = 1e-5

_Floats = NDArray[np.float64]
_AnyFloats = NDArray[np.float32] | NDArray[np.float64]


def solve_heads(training: Training, *, cache: Path, reporter: Reporter) -> _Floats:
    """Set the model's heads to the best linear heads on its frozen backbone.

    A frozen head 0 stays as it is.

    Pooled states are written to the disk file by file, so a killed process loses at most one file.

    Args:
        training: Model and examples. The trunk is read, and the heads are overwritten.
        cache: Folder of pooled states.
        reporter: Receiver of progress.

    Returns:
        Constant of each head, shape [R], which `move_centres` adds to the head's mean.
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
    head_RD = model.heads.weight.detach().cpu().double().numpy()
    offset_R = np.zeros(len(head_RD))
    if config.learns_preferences:
        head_RD[0] = fit_bradley_terry(
            state_PSD[:, 0] - state_PSD[:, 1], group_P=examples.group_P[row_P], seed=config.seed
        )
    if config.objective == "multi-head":
        first = config.first_rule
        target_NR = examples.target_PSR[row_P].reshape(-1, len(head_RD))
        head_RD[first:], offset_R[first:] = fit_ridge(
            state_PSD.reshape(-1, model.hidden_size), target_NR[:, first:]
        )
    with torch.no_grad():
        model.heads.weight.copy_(torch.from_numpy(head_RD))
    return offset_R


def fit_ridge(
    hidden_ND: _AnyFloats, target_NR: _AnyFloats, *, penalties: Sequence[float] = RIDGE_PENALTIES
) -> tuple[_Floats, _Floats]:
    """Fit linear heads by ridge regression in closed form; return heads [R, D] and constants [R].

    Target = head · state + constant. Each head is fitted in float64 to the rows that have its
    target. Its penalty has the least generalised cross-validation error, n |y - Xw|² / (n - fitted
    parameters)² (Golub, Heath and Wahba, 1979). Constants are not shrunk. They do not change a
    ranking: `move_centres` adds them to the means, so that heads have no bias and fold exactly.

    Args:
        hidden_ND: Pooled states that the heads read, shape [N, D].
        target_NR: Centred targets, shape [N, R]; NaN if missing.
        penalties: Candidate penalties, as multiples of the mean eigenvalue of X'X.

    Raises:
        InputError: A head has no target, or states are not finite.
    """
    _check(hidden_ND)
    is_valid_NR = ~np.isnan(target_NR)
    head_RD = np.empty((target_NR.shape[1], hidden_ND.shape[1]))
    offset_R = np.empty(target_NR.shape[1])
    # Heads with targets in the same rows share a decomposition.
    patterns, pattern_R = np.unique(is_valid_NR, axis=1, return_inverse=True)
    for pattern_index, is_valid_N in enumerate(patterns.T):
        heads = np.flatnonzero(pattern_R.reshape(-1) == pattern_index)
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
    """Solve heads [K, D] and constants [K] for the valid rows, with X'X = V diag(e) V'."""
    # Means are subtracted before squaring, so that no digits are lost.
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
    """Fit the linear reward that best ranks the chosen response first; return the head, [D].

    This is a logistic regression on differences of states, without intercept. It minimises the mean
    of log(1 + exp(-w (chosen - rejected))) (the paper's Bradley-Terry objective) plus penalty / 2
    |w|². The penalty has the least loss in a cross-validation with five folds.

    Args:
        difference_PD: Pooled states of chosen responses minus those of rejected ones, [P, D].
        group_P: Prompt group of each pair, shape [P]. A group is never divided between folds.
        penalties: Candidate penalties, for differences scaled to a mean square of 1.
        seed: Seed of the folds.

    Raises:
        InputError: There are fewer than two groups, or states are not finite.
        EncoreError: The search found no optimum.
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
    """Return the penalty with the least loss on held-out groups of pairs."""
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
        train_PD, held_out_PD = difference_PD[fold_P != fold], difference_PD[fold_P == fold]
        head_D = np.zeros(difference_PD.shape[1])
        for index in np.argsort(-np.array(penalties)):  # start each search at the last optimum
            head_D, _ = minimise_logistic(train_PD, head_D, penalty=penalties[index])
            total_S[index] += np.logaddexp(0.0, -(held_out_PD @ head_D)).sum()
    return penalties[int(total_S.argmin())]


def minimise_logistic(
    feature_PD: _Floats, start_D: _Floats, *, penalty: float = 0.0, max_weight: float | None = None
) -> tuple[_Floats, float]:
    """Minimise the mean of log(1 + exp(-weights · features)) + penalty / 2 |weights|².

    The problem is convex, so there is one optimum.

    Args:
        feature_PD: Features of the chosen response minus those of the rejected one, [P, D].
        start_D: Weights at which the search starts.
        penalty: Factor of the squared norm.
        max_weight: Upper bound of every weight, with a lower bound of 0. None: no bounds.

    Returns:
        The weights and their loss.

    Raises:
        EncoreError: Without bounds, the search found no optimum.
    """

    def loss_and_gradient(head_D: _Floats) -> tuple[float, _Floats]:
        margin_P = feature_PD @ head_D
        loss = np.logaddexp(0.0, -margin_P).mean() + penalty / 2 * (head_D @ head_D)
        gradient_D = penalty * head_D - expit(-margin_P) @ feature_PD / len(feature_PD)
        return float(loss), gradient_D

    solution = minimize(
        loss_and_gradient,
        start_D,
        method="L-BFGS-B",
        jac=True,
        bounds=None if max_weight is None else [(0, max_weight)] * len(start_D),
        options={"maxiter": 5000, "maxfun": 10_000, "gtol": 1e-7, "ftol": 1e-13},
    )
    # Rounding may stop the search before its criterion is met.
    is_bounded = max_weight is not None
    if not (is_bounded or solution.success) and np.abs(solution.jac).max() > _SMALL_GRADIENT:
        raise EncoreError(
            f"bradley-terry probe: no optimum under penalty {penalty:g} ({solution.message}); give "
            "larger penalties"
        )
    return np.asarray(solution.x, dtype=np.float64), float(solution.fun)


def _check(hidden_ND: _AnyFloats) -> None:
    """Raise if a state is not finite."""
    is_finite_N = np.isfinite(hidden_ND).all(axis=1)
    if not is_finite_N.all():
        raise InputError(
            f"embedding {is_finite_N.argmin()} of {len(hidden_ND)} is not finite; the backbone "
            "overflows on it: load it with dtype float32 or bfloat16"
        )
