"""The two losses, as sums, so that a step's loss does not depend on how the step is cut up.

A step's loss is the sum over its microbatches, divided by `num_terms` of the whole step.

Suffixes: N responses, P pairs, R heads.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from encore.training.config import Objective


def multi_head_loss(score_NR: Tensor, target_NR: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over responses of the mean squared error over the heads that have a target.

    The paper's "multi-output regression loss" read head by head, (M_k - s_k)², since weights are no
    part of training. A missing rating is masked: no gradient reaches its head. A response counts
    once however many of its ratings are missing, and not at all when all are.

    Args:
        score_NR: The model's centred scores, float32, shape [N, R].
        target_NR: Centred ratings, NaN where missing, shape [N, R].

    Returns:
        The sum (float32, differentiable) and the number of responses with any target (int64), both
        without dimensions.
    """
    is_rated_NR = ~torch.isnan(target_NR)
    # Zero before the subtraction: a NaN there would come back through the gradient of `where`.
    known_NR = torch.where(is_rated_NR, target_NR, 0.0)
    error_NR = torch.where(is_rated_NR, score_NR - known_NR, 0.0)
    num_rated_N = is_rated_NR.sum(dim=1)
    loss_N = error_NR.square().sum(dim=1) / num_rated_N.clamp(min=1)
    return loss_N.sum(), (num_rated_N > 0).sum()


def bradley_terry_loss(score_chosen_P: Tensor, score_rejected_P: Tensor) -> Tensor:
    """Sum over pairs of -log σ(chosen - rejected) (the paper's Bradley-Terry objective).

    Args:
        score_chosen_P: Of the responses that people preferred, shape [P].
        score_rejected_P: Of the others, shape [P].
    """
    return F.softplus(score_rejected_P - score_chosen_P).sum()


def loss_sum(score_NR: Tensor, target_NR: Tensor, *, objective: Objective) -> Tensor:
    """The sum of an objective's loss over whole pairs, a chosen response before its rejected one.

    Args:
        score_NR: The model's scores, shape [N, R]; R is 1 for bradley-terry.
        target_NR: Centred ratings, NaN where missing, shape [N, R]; not read for bradley-terry.
        objective: Which loss.
    """
    if objective == "multi-head":
        return multi_head_loss(score_NR, target_NR)[0]
    return bradley_terry_loss(score_NR[::2, 0], score_NR[1::2, 0])


def num_terms(target_NR: NDArray[np.float32], *, objective: Objective) -> int:
    """What a step's sum is divided by: its responses with any target, or its pairs."""
    if objective == "multi-head":
        return int((~np.isnan(target_NR)).any(axis=1).sum())
    return len(target_NR) // 2
