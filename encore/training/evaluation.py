"""The two losses, and the evaluation of a model on held-out pairs.

A loss is the sum of its terms divided by `num_terms` of the whole step. So it does not depend on
how the step is divided into microbatches.

Suffixes: P pairs, N responses (two a pair, chosen first), R heads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from encore.core.errors import EncoreError
from encore.training.batches import Training, plan_rows, score_microbatch
from encore.training.run_folder import EvaluationRecord
from encore.training.training_options import Objective

_Floats = NDArray[np.float32]
#: Most pairs that an error message names.
_NUM_NAMED_PAIRS = 5


class TrainingDivergedError(EncoreError):
    """A loss or a gradient is not finite.

    Attributes:
        step: Step that failed, from 1.
        pair_ids: Pairs of the step; only those with a loss that is not finite, if these are known.
    """

    def __init__(self, *, problem: str, step: int, pair_ids: Sequence[str] = ()) -> None:
        self.step = step
        self.pair_ids = tuple(pair_ids)
        pairs = f" on pairs {', '.join(pair_ids[:_NUM_NAMED_PAIRS])}" if pair_ids else ""
        super().__init__(
            f"training diverged: {problem} at step {step}{pairs}; expected finite numbers; the "
            "last checkpoint is kept: look at these pairs (encore show STUDY PAIR), or start a new "
            "run with a lower learning rate"
        )


# --- losses -------------------------------------------------------------------------------------


def loss_terms(score_NR: Tensor, target_NR: Tensor, *, objective: Objective) -> Tensor:
    """Return the terms of a loss over whole pairs, with the chosen response first.

    multi-head: one term for each response, the mean squared error over the heads that have a
    target. This is the paper's "multi-output regression loss" for each head, (M_k - s_k)², because
    weights are no part of training. A missing rating is masked, so its head gets no gradient. A
    response with some ratings missing counts fully, one without ratings is 0.

    bradley-terry: one term for each pair, -log σ(chosen - rejected) (the paper's Bradley-Terry
    objective).

    Args:
        score_NR: Scores of the model, float32, shape [N, R]; R is 1 for bradley-terry.
        target_NR: Centred ratings, shape [N, R], NaN if missing; not read for bradley-terry.
        objective: ``multi-head`` or ``bradley-terry``.
    """
    if objective == "bradley-terry":
        return F.softplus(score_NR[1::2, 0] - score_NR[::2, 0])
    is_rated_NR = ~torch.isnan(target_NR)
    # Replace NaN before the subtraction: it would spread through the gradient of `where`.
    filled_NR = torch.where(is_rated_NR, target_NR, 0.0)
    error_NR = torch.where(is_rated_NR, score_NR - filled_NR, 0.0)
    return error_NR.square().sum(dim=1) / is_rated_NR.sum(dim=1).clamp(min=1)


def num_terms(target_NR: _Floats, *, objective: Objective) -> int:
    """Return the divisor of a step's loss: its responses with any target, or its pairs."""
    if objective == "bradley-terry":
        return len(target_NR) // 2
    return int((~np.isnan(target_NR)).any(axis=1).sum())


# --- held-out pairs -----------------------------------------------------------------------------


def evaluate(training: Training, *, step: int) -> EvaluationRecord | None:
    """Score the held-out pairs without dropout and gradients, and return the metrics.

    The layout is that of the training. The model returns to its mode afterwards. With several
    processes, each scores its share of the pairs, at least one, and gets the complete record.

    Returns:
        The metrics, or None if no pairs are held out.

    Raises:
        TrainingDivergedError: A score is not finite.
    """
    began, model, row_P = time.monotonic(), training.model, training.split.evaluation_rows
    if not len(row_P):
        return None
    objective, rows = training.config.objective, plan_rows(training, row_P)
    # Scores of other processes' pairs stay 0 here: the sum over all processes is complete.
    score_NR = np.zeros((len(rows.sequences), len(model.head_ids)), dtype=np.float32)
    was_training = model.training
    model.eval()
    try:
        for plan in rows.plans:
            with torch.no_grad():
                sequences, new_score_NR, _ = score_microbatch(training, rows, plan)
            if plan.weight:
                score_NR[sequences] = new_score_NR.float().cpu().numpy()
    finally:
        model.train(was_training)
    scores = training.ranks.sum(torch.from_numpy(score_NR))
    score_NR = scores.numpy()
    is_bad_P = ~np.isfinite(score_NR).all(axis=1).reshape(-1, 2).all(axis=1)
    if is_bad_P.any():
        raise TrainingDivergedError(
            problem="a held-out score is not finite",
            step=step,
            pair_ids=training.examples.pair_id_P[row_P[is_bad_P]].tolist(),
        )
    is_multi_head = objective == "multi-head"
    accuracies = [accuracy_half(margin_P) for margin_P in (score_NR[::2] - score_NR[1::2]).T]
    terms = num_terms(rows.target_NR, objective=objective)
    total = loss_terms(scores, torch.from_numpy(rows.target_NR), objective=objective).sum()
    return EvaluationRecord(
        step=step,
        loss=float(total) / terms if terms else None,
        r2_by_head={
            head_id: r_squared(score_NR[:, head], rows.target_NR[:, head])
            for head, head_id in enumerate(model.head_ids if is_multi_head else ())
        },
        accuracy_half=None if is_multi_head else accuracies[0],
        num_pairs=len(row_P),
        accuracy_half_by_head=dict(zip(model.head_ids, accuracies, strict=True)),
        seconds=time.monotonic() - began,
    )


def r_squared(score_N: _Floats, target_N: _Floats) -> float | None:
    """Return R²: 1 - squared error / squared deviation of the targets from their mean.

    Only rated responses count. None if there are fewer than two targets or all are equal.
    """
    is_rated_N = ~np.isnan(target_N)
    target = target_N[is_rated_N].astype(np.float64)
    if len(target) < 2 or target.max() == target.min():
        return None
    error = score_N[is_rated_N].astype(np.float64) - target
    return float(1 - np.square(error).sum() / np.square(target - target.mean()).sum())


def accuracy_half(margin_P: NDArray[Any]) -> float | None:
    """Return the share of pairs with a positive margin, with ties counted half; None if empty."""
    return float((1 + np.sign(margin_P)).mean(dtype=np.float64) / 2) if len(margin_P) else None
