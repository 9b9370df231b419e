"""The rewards of one request's texts, from which its answer is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from encore.serving.composed_rewards import ComposedReward, RewardComposer
from encore.serving.held_out_scale import HeldOutScale
from encore.serving.request_encoding import EncodedText
from encore.serving.reward_requests import RequestError

#: A text with its reward, or the reason why it has none.
TextReward = tuple[EncodedText, ComposedReward] | RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTexts:
    """The rewards of one request's texts.

    Attributes:
        texts: Each text with its reward, or its error if the request has a place for it.
        composer: Composer of the rewards, with the rules.
        model_fields: Name and digest of the model.
        threshold: Lowest reward that the server calls safe, if it was given one.
        scale: Scale of the scores of the training's held-out responses.
    """

    texts: Sequence[TextReward]
    composer: RewardComposer
    model_fields: Mapping[str, str]
    threshold: float | None
    scale: HeldOutScale

    @property
    def rewards(self) -> list[ComposedReward]:
        """Return the rewards of texts without errors."""
        return [text[1] for text in self.texts if not isinstance(text, RequestError)]

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens of texts without errors."""
        return sum(
            len(text[0].token_ids) for text in self.texts if not isinstance(text, RequestError)
        )

    def contributions(self, reward: ComposedReward) -> dict[str, float]:
        """Return each rule's part of a reward, by rule in alphabetical order."""
        parts = zip(self.composer.head_ids, reward.contribution_R.tolist(), strict=True)
        return dict(sorted(parts))
