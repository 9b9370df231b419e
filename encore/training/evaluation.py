"""The losses, and the evaluation of a model on held-out pairs.

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
from encore.model.held_out_scores import HeldOutScores
from encore.training.batches import PlannedRows, Training, plan_rows, score_microbatch
from encore.training.run_folder import EvaluationRecord
from encore.training.training_options import Objective, TrainingConfig

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


def loss_terms(
    score_NR: Tensor, target_NR: Tensor, *, objective: Objective, rating_factor: float | None = None
) -> Tensor:
    """Return the terms of a loss over whole pairs, with the chosen response first.

    multi-head: one term for each response, the mean squared error over the heads that have a
    target. This is the paper's "multi-output regression loss" for each head, (M_k - s_k)², because
    weights are no part of training. A missing rating is masked, so its head gets no gradient. A
    response with some ratings missing counts fully, one without ratings is 0.

    bradley-terry: one term for each pair, -log σ(chosen - rejected) (the paper's Bradley-Terry
    objective).

    multi-head with a factor: one term for each pair, the bradley-terry term of head 0 plus the
    factor times the multi-head terms of both responses (SMORM, arXiv 2507.07375).

    Args:
        score_NR: Scores of the model, float32, shape [N, R]; R is 1 for bradley-terry.
        target_NR: Centred ratings, shape [N, R], NaN if missing; not read for bradley-terry.
        objective: ``multi-head`` or ``bradley-terry``.
        rating_factor: Factor of a joint loss, from `loss_scale`; None: head 0 learns nothing.
    """
    if objective == "bradley-terry":
        return F.softplus(score_NR[1::2, 0] - score_NR[::2, 0])
    is_rated_NR = ~torch.isnan(target_NR)
    # Replace NaN before the subtraction: it would spread through the gradient of `where`.
    filled_NR = torch.where(is_rated_NR, target_NR, 0.0)
    error_NR = torch.where(is_rated_NR, score_NR - filled_NR, 0.0)
    rating_N = error_NR.square().sum(dim=1) / is_rated_NR.sum(dim=1).clamp(min=1)
    if rating_factor is None:
        return rating_N
    preference_P = loss_terms(score_NR, target_NR, objective="bradley-terry")
    return preference_P + rating_factor * (rating_N[::2] + rating_N[1::2])


def num_terms(target_NR: _Floats, *, objective: Objective) -> int:
    """Return the divisor of a step's loss: its responses with any target, or its pairs."""
    if objective == "bradley-terry":
        return len(target_NR) // 2
    return int((~np.isnan(target_NR)).any(axis=1).sum())


def loss_scale(target_NR: _Floats, *, config: TrainingConfig) -> tuple[int, float | None]:
    """Return the divisor of a step's loss, and the factor of ratings in a joint loss or None.

    A joint loss is the mean over pairs plus ``rating_loss_weight`` times the mean over responses
    with any rating, so the factor turns the one divisor into the other.
    """
    divisor = num_terms(target_NR, objective=config.objective)
    if config.preference_head != "joint":
        return divisor, None
    num_pairs = len(target_NR) // 2
    return num_pairs, config.rating_loss_weight * num_pairs / max(1, divisor)


# --- held-out pairs -----------------------------------------------------------------------------


def evaluate(training: Training, *, step: int) -> tuple[EvaluationRecord, HeldOutScores] | None:
    """Score the held-out pairs without dropout and gradients, and return the metrics.

    The layout is that of the training. The model returns to its mode afterwards. With several
    processes, each scores its share of the pairs, at least one, and gets the complete record.

    Returns:
        The metrics and the scores, or None if no pairs are held out.

    Raises:
        TrainingDivergedError: A score is not finite.
    """
    began, model, row_P = time.monotonic(), training.model, training.split.evaluation_rows
    if not len(row_P):
        return None
    config, rows = training.config, plan_rows(training, row_P)
    scores = _score(training, rows)
    score_NR = scores.numpy()
    is_bad_P = ~np.isfinite(score_NR).all(axis=1).reshape(-1, 2).all(axis=1)
    if is_bad_P.any():
        raise TrainingDivergedError(
            problem="a held-out score is not finite",
            step=step,
            pair_ids=training.examples.pair_id_P[row_P[is_bad_P]].tolist(),
        )
    is_multi_head, first_rule = config.objective == "multi-head", config.first_rule
    accuracies = [accuracy_half(margin_P) for margin_P in (score_NR[::2] - score_NR[1::2]).T]
    divisor, rating_factor = loss_scale(rows.target_NR, config=config)
    term_T = loss_terms(
        scores,
        torch.from_numpy(rows.target_NR),
        objective=config.objective,
        rating_factor=rating_factor,
    )
    record = EvaluationRecord(
        step=step,
        loss=float(term_T.sum()) / divisor if divisor else None,
        r2_by_head={
            head_id: r_squared(score_NR[:, head], rows.target_NR[:, head])
            for head, head_id in enumerate(model.head_ids)
            if is_multi_head and head >= first_rule
        },
        accuracy_half=accuracies[0] if first_rule or not is_multi_head else None,
        num_pairs=len(row_P),
        accuracy_half_by_head=dict(zip(model.head_ids, accuracies, strict=True)),
        seconds=time.monotonic() - began,
    )
    score_P2R = score_NR.reshape(len(row_P), 2, -1)
    return record, HeldOutScores(score_P2R=score_P2R, group_P=training.examples.group_P[row_P])


def _score(training: Training, rows: PlannedRows) -> Tensor:
    """Return the scores of rows under every head, [N, R], those of all processes together."""
    # Scores of other processes' pairs stay 0 here: the sum over all processes is complete.
    model = training.model
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
    return training.ranks.sum(torch.from_numpy(score_NR))


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
