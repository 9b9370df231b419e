"""Compose the scores of rules into rewards; leave rules out of a prompt, or only watch them.

Legend: R rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encore.core.errors import InputError, did_you_mean
from encore.serving.serve_options import RuleUse

_Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComposedReward:
    """The reward of one text.

    Attributes:
        score_R: Score of each rule, centred.
        weight_R: Weight of each rule for this text's prompt; 0: the rule is not in the reward.
    """

    score_R: _Numbers
    weight_R: _Numbers

    @property
    def contribution_R(self) -> _Numbers:
        """Return each rule's part of the reward."""
        return self.weight_R * self.score_R

    @property
    def reward(self) -> float:
        """Return the weighted sum of the centred scores."""
        return float(self.weight_R @ self.score_R)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RewardComposer:
    """Weights of a model's rules, which may differ by prompt.

    If rules are left out or watched, the weights of the others are scaled so that the sum of the
    weights' absolute values stays.

    Attributes:
        head_ids: Ids of the rules.
        mean_R: Mean that was subtracted from each rule's targets.
        weight_R: Weight of each rule if none is left out; those of watched rules are 0.
        use: Rules that are left out or watched.
    """

    head_ids: Sequence[str]
    mean_R: _Numbers
    weight_R: _Numbers
    use: RuleUse = field(default_factory=RuleUse)

    def __post_init__(self) -> None:
        """Take watched rules out of the weights.

        Raises:
            InputError: There is no such rule, or no other rule has a weight.
        """
        for rule in self.use.watch:
            if rule not in self.head_ids:
                expected = did_you_mean(rule, self.head_ids)
                raise InputError(f"--watch {rule}: the model has no such rule; {expected}")
        is_watched_R = np.isin(self.head_ids, self.use.watch)
        kept_R = self.weight_R * ~is_watched_R
        if not kept_R.any():
            raise InputError("--watch: no rule is left in the reward; watch fewer rules")
        object.__setattr__(self, "weight_R", self._scaled(kept_R))

    def compose(self, score_R: _Numbers, *, prompt_digest: bytes) -> ComposedReward:
        """Return the reward of a text. All texts of one prompt have the same rules."""
        return ComposedReward(score_R=score_R, weight_R=self._prompt_weights(prompt_digest))

    def rule_records(self, **columns: NDArray[Any]) -> list[dict[str, Any]]:
        """Return one record per rule with the values of these columns, each of shape [R]."""
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [
            {"rule_id": head_id, **dict(zip(columns, row, strict=True))}
            for head_id, row in zip(self.head_ids, rows, strict=True)
        ]

    def _prompt_weights(self, prompt_digest: bytes) -> _Numbers:
        """Return the weights after a random part of the rules, but never all, is left out."""
        [rules] = np.nonzero(self.weight_R)
        num_dropped = min(round(self.use.drop_rules * len(rules)), len(rules) - 1)
        if not num_dropped:
            return self.weight_R
        key = hashlib.sha256(f"{self.use.drop_seed} ".encode() + prompt_digest).digest()
        generator = np.random.default_rng(int.from_bytes(key))
        kept_R = self.weight_R.copy()
        kept_R[generator.choice(rules, num_dropped, replace=False)] = 0.0
        return self._scaled(kept_R)

    def _scaled(self, kept_R: _Numbers) -> _Numbers:
        scale = float(np.abs(self.weight_R).sum() / np.abs(kept_R).sum())
        return kept_R * scale
