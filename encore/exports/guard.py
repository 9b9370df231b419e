"""Call a conversation safe or unsafe by its composed reward, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from encore.core.errors import InputError
from encore.exports.weights_input import Composition, one_rule, read_weights, with_head_0
from encore.model.open_model import OpenedModel
from encore.weighting.weight_vector import head_weights


class Verdict(NamedTuple):
    """Result of `guard`.

    Attributes:
        reward: Weighted sum of the rules' centred scores.
        is_safe: True if the reward is at least the threshold.
        contributions: Each rule's part of the reward.
    """

    reward: float
    is_safe: bool
    contributions: dict[str, float]


def guard(
    conversation: Sequence[Mapping[str, str]],
    *,
    model: OpenedModel,
    threshold: float,
    weights: Mapping[str, float] | str | Path | None = None,
) -> Verdict:
    """Compare a conversation's reward with a threshold, as `POST /guard` of `encore serve` does.

    Args:
        conversation: Messages with ``role`` and ``content``; the last is the assistant's response.
        model: Model of `encore.open_reward_model`; open it once and keep it.
        threshold: Lowest reward that is safe. A reward has no natural zero: choose it on labelled
            conversations.
        weights: Weight of each rule, or the file of `encore weights --json`. A model of one head
            needs none. Weights of rules alone are composed with head 0 if the model has one.

    Raises:
        InputError: The conversation does not end with a response that has text, the threshold is
            not a number, or the weights are not those of the model's heads.
    """
    head_ids, held_out = model.model.head_ids, model.held_out
    if not np.isfinite(threshold):
        raise InputError(f"threshold {threshold}: expected a finite number")
    if weights is None:
        if len(head_ids) > 1:
            raise InputError(f"the model has {len(head_ids)} heads; give the weights of its rules")
        weights = one_rule(head_ids[0], head_ids=head_ids).weights
    elif isinstance(weights, Mapping):
        composition = Composition(weights=dict(weights))
        weights = with_head_0(composition, head_ids=head_ids, held_out=held_out).weights
    else:
        weights = read_weights(Path(weights), head_ids=head_ids, held_out=held_out).weights
    weight_R = head_weights(weights, head_ids=head_ids)
    scores = model.score([conversation])
    contributions = {
        head_id: float(weight * scores[head_id][0])
        for head_id, weight in zip(head_ids, weight_R, strict=True)
    }
    reward = sum(contributions.values())
    return Verdict(reward, reward >= threshold, contributions)
