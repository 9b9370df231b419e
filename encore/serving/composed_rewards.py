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
from encore.weighting.preference_head import has_preference_head

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

    If rules are left out or watched, the weights of the other rules are scaled so that the sum of
    their absolute values stays. Head 0 is no rule: it is never left out at random or scaled.

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
        [rules] = np.nonzero(self.weight_R * self._is_rule_R)
        num_dropped = min(round(self.use.drop_rules * len(rules)), len(rules) - 1)
        if num_dropped < 1:
            return self.weight_R
        key = hashlib.sha256(f"{self.use.drop_seed} ".encode() + prompt_digest).digest()
        generator = np.random.default_rng(int.from_bytes(key))
        kept_R = self.weight_R.copy()
        kept_R[generator.choice(rules, num_dropped, replace=False)] = 0.0
        return self._scaled(kept_R)

    @property
    def _is_rule_R(self) -> NDArray[np.bool_]:
        """Return True for each head but head 0."""
        return np.arange(len(self.head_ids)) >= int(has_preference_head(self.head_ids))

    def _scaled(self, kept_R: _Numbers) -> _Numbers:
        is_rule_R = self._is_rule_R
        total, kept_total = (
            float(np.abs(weight_R[is_rule_R]).sum()) for weight_R in (self.weight_R, kept_R)
        )
        scale = total / kept_total if kept_total else 1.0  # head 0 can be all that is left
        return np.where(is_rule_R, kept_R * scale, kept_R)
