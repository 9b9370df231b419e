"""Answers about conversations for people and guardrails: `POST /score` and `POST /guard`.

A bad conversation has an error in its place; the others are scored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from encore.serving.composed_rewards import ComposedReward
from encore.serving.request_encoding import EncodedText
from encore.serving.reward_requests import GuardRequest, RequestError, ScoreRequest
from encore.serving.scored_texts import ScoredTexts


def answer_score(_request: ScoreRequest, scored: ScoredTexts) -> dict[str, Any]:
    """Answer with every conversation's reward and the contribution of each rule.

    ``reward_shown`` is for people: the means of the rules are added to the reward.
    """
    composer = scored.composer

    def explain(text: EncodedText, reward: ComposedReward) -> dict[str, Any]:
        return {
            "reward": reward.reward,
            "reward_shown": reward.reward + float(reward.weight_R @ composer.mean_R),
            "rules": composer.rule_records(
                score=reward.score_R + composer.mean_R,
                centred_score=reward.score_R,
                weight=reward.weight_R,
                contribution=reward.contribution_R,
                is_in_reward=reward.weight_R != 0,
            ),
            "num_tokens": len(text.token_ids),
            "num_cut": text.num_cut,
        }

    return {**scored.model_fields, "results": _results(scored, explain)}


def answer_guard(request: GuardRequest, scored: ScoredTexts) -> dict[str, Any]:
    """Answer for every conversation if its reward is at least the threshold.

    Raises:
        RequestError: 422 if neither the request nor the server has a threshold.
    """
    threshold = scored.threshold if request.threshold is None else request.threshold
    if threshold is None:
        reason = "no threshold: send one, or start the server with --threshold NUMBER"
        raise RequestError(422, "malformed", reason)

    def judge(_text: EncodedText, reward: ComposedReward) -> dict[str, Any]:
        return {
            "reward": reward.reward,
            "is_safe": reward.reward >= threshold,
            "contributions": scored.contributions(reward),
        }

    return {**scored.model_fields, "threshold": threshold, "results": _results(scored, judge)}


def _results(
    scored: ScoredTexts, describe: Callable[[EncodedText, ComposedReward], dict[str, Any]]
) -> list[dict[str, Any]]:
    return [
        {"error": text.detail} if isinstance(text, RequestError) else describe(*text)
        for text in scored.texts
    ]


CONVERSATION_SHAPES: dict[str, tuple[Any, Callable[[Any, ScoredTexts], Any]]] = {
    "/score": (ScoreRequest, answer_score),
    "/guard": (GuardRequest, answer_guard),
}
