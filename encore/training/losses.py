"""The two losses, as sums, so that a step's loss does not depend on how the step is cut up.

Suffixes: N responses, P pairs, R heads.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F


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


def num_rated_responses(target_NR: NDArray[np.float32]) -> int:
    """Responses with any target: what a step's sum of `multi_head_loss` is divided by."""
    return int((~np.isnan(target_NR)).any(axis=1).sum())


def bradley_terry_loss(score_chosen_P: Tensor, score_rejected_P: Tensor) -> Tensor:
    """Sum over pairs of -log σ(chosen - rejected) (the paper's Bradley-Terry objective).

    Args:
        score_chosen_P: Of the responses that people preferred, shape [P].
        score_rejected_P: Of the others, shape [P].
    """
    return F.softplus(score_rejected_P - score_chosen_P).sum()
