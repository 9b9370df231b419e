"""From head scores to a reward, and what each rule contributes to it. Legend: N texts, R rules.

A head gives a centred score: its rule's mean was taken from the ratings it was trained on. The
reward is the weighted sum of centred scores, which is what an exported model with folded weights
gives; a number for people has the means added back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.errors import InputError
from encore.export.records import Composition
from encore.weighting.head_weights import reward_weights

_Floats = NDArray[np.float64]

_SHOWN_RULES = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Composed:
    """Rewards of N texts and what they are made of.

    Attributes:
        centred_NR: Scores as the heads give them, shape [N, R].
        shown_NR: The same with the means added back: on the scale of the ratings.
        contribution_NR: Weight times centred score.
        reward_N: Sum of a text's contributions.
        reward_shown_N: The same of scores with their means.
    """

    centred_NR: _Floats
    shown_NR: _Floats
    contribution_NR: _Floats
    reward_N: _Floats
    reward_shown_N: _Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Composer:
    """How a model's heads become one reward.

    Attributes:
        head_ids: The R rules, in head order.
        weight_R: One each.
        mean_R: What was subtracted from each rule's ratings.
        origin: The scheme of the weights, its parameters and what they were made from: JSON.
    """

    head_ids: tuple[str, ...]
    weight_R: _Floats
    mean_R: _Floats
    origin: Mapping[str, Any]

    @property
    def reward_mean(self) -> float:
        """The weighted means: what is added to a reward before people see it."""
        return float(self.weight_R @ self.mean_R)

    @property
    def words(self) -> str:
        """What a reward is made of, for people."""
        if len(self.head_ids) == 1:
            return f"the head {self.head_ids[0]}"
        params = "".join(f", {name} {value}" for name, value in self.origin["params"].items())
        return f"{len(self.head_ids)} rules, weights of scheme {self.origin['scheme']}{params}"

    def compose(self, score_NR: NDArray[np.floating[Any]]) -> Composed:
        """Rewards and contributions of centred scores, in float64."""
        centred_NR = np.asarray(score_NR, dtype=np.float64)
        contribution_NR = centred_NR * self.weight_R
        reward_N = contribution_NR.sum(axis=1)
        return Composed(
            centred_NR=centred_NR,
            shown_NR=centred_NR + self.mean_R,
            contribution_NR=contribution_NR,
            reward_N=reward_N,
            reward_shown_N=reward_N + self.reward_mean,
        )


def make_composer(
    composition: Composition | None, *, head_ids: Sequence[str], mean_R: Sequence[float] | _Floats
) -> Composer:
    """The composer of a model's heads.

    Args:
        composition: Their weights; None: the only head of a model that has one.
        head_ids: The rules, in head order.
        mean_R: In head order.

    Raises:
        InputError: several heads and no weights; weights for other rules than the heads.
    """
    if composition is None:
        if len(head_ids) > 1:
            more = ", …" if len(head_ids) > _SHOWN_RULES else ""
            raise InputError(
                f"the model has {len(head_ids)} heads ({', '.join(head_ids[:_SHOWN_RULES])}{more}) "
                "and a reward is one number; say what they weigh: --weights FILE, as `encore "
                "weights --json` writes it, or one rule alone with --rule"
            )
        [only] = head_ids
        composition = Composition(weights={only: 1.0}, scheme="single", params={"rule": only})
    return Composer(
        head_ids=tuple(head_ids),
        weight_R=reward_weights(composition.weights, head_ids=head_ids),
        mean_R=np.asarray(mean_R, dtype=np.float64),
        origin={
            "scheme": composition.scheme,
            "params": dict(composition.params),
            "provenance": composition.provenance,
        },
    )
