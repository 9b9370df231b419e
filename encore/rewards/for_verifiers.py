"""Rewards for verifiers and prime-rl: a judge of their plug-in form. It needs verifiers.

An id of a judge is the name of one module. So a task needs a module of two lines beside it:

    from encore.rewards.for_verifiers import RewardJudge

    __all__ = ["RewardJudge"]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verifiers.v1.configs.judge import JudgeConfig
from verifiers.v1.judge import Judge

from encore.core.errors import InputError
from encore.rewards.conversations import conversation_json
from encore.rewards.reward_client import shared_client


class RewardJudgeConfig(JudgeConfig):  # type: ignore[misc]
    """Options of the judge.

    Attributes:
        url: URL of `encore serve`; default: the variable ``ENCORE_REWARD_URL``.
    """

    url: str | None = None


class RewardJudge(Judge[None, RewardJudgeConfig]):  # type: ignore[misc]
    """The reward server as a judge of verifiers."""

    async def score(self, task: Any, trace: Any) -> Mapping[str, float]:  # noqa: ARG002
        """Return what each rule adds to the reward, by ``NAME/RULE``; the sum is the reward.

        Every rule's centred score is a metric of the same name.

        Raises:
            InputError: The conversation has several branches, uses tools, or does not end with the
                model's answer.
            RewardUnavailableError: There is no reward within the client's time limit.
        """
        if trace.num_branches != 1:
            raise InputError(f"a trace of {trace.num_branches} branches; expected one conversation")
        messages = [message.model_dump() for message in trace.messages]
        # The whole conversation is the completion: it must end with the assistant's answer.
        [reward] = await shared_client(self.config.url).score_async(
            [conversation_json([], messages)]
        )
        for rule_id, score in reward.scores.items():
            trace.record_metric(f"{self.reward_name}/{rule_id}", score)
        return {
            f"{self.reward_name}/{rule_id}": contribution
            for rule_id, contribution in reward.contributions.items()
        }


__all__ = ["RewardJudge", "RewardJudgeConfig"]
