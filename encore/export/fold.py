"""Fold weighted heads into one: exact, because heads are linear and without bias.

Suffixes: R heads, D hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from encore.weighting.head_weights import reward_weights


def fold(weight_RD: Any, weights: Mapping[str, float], head_ids: Sequence[str]) -> Any:
    """The one head whose score is the weighted sum of all: Σ w_k W_k, shape [1, D], float64.

    Summed in float64 and not rounded: the caller rounds once, to what it writes (paper, eq.
    "encore": the composed reward is linear in the heads).

    Args:
        weight_RD: The heads' weights, shape [R, D].
        weights: One per head, by head id.
        head_ids: The heads, in order.

    Raises:
        InputError: Weights for other rules than the heads, or that are no finite numbers, or all 0.
    """
    weight_R = torch.from_numpy(reward_weights(weights, head_ids=head_ids))
    return weight_R[None] @ weight_RD.detach().cpu().double()
