"""The weights of a model's heads, from whichever composer they come: one finite number each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from encore.errors import InputError

_SHOWN = 5


def head_weights(weights: Mapping[str, float], *, head_ids: Sequence[str]) -> NDArray[np.float64]:
    """The weights in head order, float64, shape [R].

    They need not be positive or sum to 1: composing is linear whatever they are.

    Args:
        weights: By rule id.
        head_ids: The R heads, in order.

    Raises:
        InputError: Weights for other rules than the heads, or one that is no finite number.
    """
    strangers = sorted(set(weights) - set(head_ids))
    unweighed = [head_id for head_id in head_ids if head_id not in weights]
    if strangers or unweighed:
        raise InputError(
            f"weights for other rules than the model's heads: {_listed(strangers)} among the "
            f"weights but no head, {_listed(unweighed)} among the heads but not weighed; give one "
            "weight for each head (0 leaves a rule out)"
        )
    weight_R = np.array([weights[head_id] for head_id in head_ids], dtype=np.float64)
    for head_id, weight in zip(head_ids, weight_R, strict=True):
        if not np.isfinite(weight):
            raise InputError(f"weights: {weight} for rule {head_id}; expected a finite number")
    return weight_R


def reward_weights(weights: Mapping[str, float], *, head_ids: Sequence[str]) -> NDArray[np.float64]:
    """The same for a reward that is given away or served, which has to tell responses apart.

    Raises:
        InputError: As `head_weights`; all weights are 0.
    """
    weight_R = head_weights(weights, head_ids=head_ids)
    if not weight_R.any():
        raise InputError("weights: all are 0, so every response would score the same; weigh a rule")
    return weight_R


def _listed(names: Sequence[str]) -> str:
    """A few names and how many more there are."""
    if not names:
        return "nothing"
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
