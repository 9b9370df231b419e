"""Rewards for TRL's `GRPOTrainer` and `RLOOTrainer`: a function a rule, or the composed reward."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from encore.rewards.conversations import Dialogue, conversation_json
from encore.rewards.reward_client import RewardClient, TextReward, shared_client

_Dialogues = Sequence[Dialogue]


class BatchRewards:
    """Rewards of the latest batch, which several functions read after one request.

    A trainer calls each function with the same batch. The first call sends it. A function that
    asks for the same batch again gets new rewards.
    """

    def __init__(self, client: RewardClient) -> None:
        self.client = client
        self._lock = threading.Lock()
        self._conversations: list[str] = []
        self._readers: set[str] = set()
        self._rewards: Future[list[TextReward]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchRewards, (self.client,)

    def submit(
        self, reader: str, prompts: _Dialogues, completions: _Dialogues
    ) -> Future[list[TextReward]]:
        """Return the rewards of a batch.

        Args:
            reader: Name of the function that asks.
            prompts: Prompt of each text, in any form of `Dialogue`.
            completions: Completion of each text, in any form of `Dialogue`.
        """
        # The texts are compared, not the lists: a trainer may fill the same lists again.
        pairs = zip(prompts, completions, strict=True)
        conversations = [conversation_json(prompt, completion) for prompt, completion in pairs]
        with self._lock:
            is_same = conversations == self._conversations and reader not in self._readers
            if not is_same or self._rewards is None:
                self._conversations, self._readers = conversations, set()
                self._rewards = self.client.submit(conversations)
            self._readers.add(reader)
            return self._rewards


class RuleReward:
    """One rule as a reward function. Its ``__name__``, which TRL logs, is the rule's id.

    It returns the rule's centred scores, and None where the server left the rule out of the reward.
    """

    def __init__(self, rule_id: str, batch: BatchRewards) -> None:
        self.__name__ = rule_id
        self._batch = batch

    def __call__(
        self, prompts: _Dialogues, completions: _Dialogues, **_columns: object
    ) -> list[float | None]:
        """Return the score of each completion."""
        return self._scores(self._batch.submit(self.__name__, prompts, completions).result())

    def _scores(self, rewards: Sequence[TextReward]) -> list[float | None]:
        rule_id = self.__name__
        return [
            None if rule_id in reward.left_out else reward.scores[rule_id] for reward in rewards
        ]


class AsyncRuleReward(RuleReward):
    """One rule as an asynchronous reward function."""

    async def __call__(  # type: ignore[override]
        self, prompts: _Dialogues, completions: _Dialogues, **_columns: object
    ) -> list[float | None]:
        """Return the score of each completion."""
        submitted = await asyncio.to_thread(self._batch.submit, self.__name__, prompts, completions)
        rewards = await asyncio.wrap_future(submitted)
        return self._scores(rewards)


class ComposedReward:
    """The composed reward as one reward function, which TRL logs as ``encore``."""

    __name__ = "encore"

    def __init__(self, client: RewardClient) -> None:
        self._client = client

    def __call__(
        self, prompts: _Dialogues, completions: _Dialogues, **_columns: object
    ) -> list[float]:
        """Return the reward of each completion."""
        pairs = zip(prompts, completions, strict=True)
        conversations = [conversation_json(prompt, completion) for prompt, completion in pairs]
        return [reward.reward for reward in self._client.score(conversations)]


class RuleRewards(list[RuleReward]):
    """One reward function a rule, in head order.

    Attributes:
        weights: Weight of each rule in the same order, for ``reward_weights``. A rule that the
            server only watches has the weight 0.
    """

    weights: list[float]


def rule_rewards(server: str | RewardClient, *, is_async: bool = False) -> RuleRewards:
    """Return one reward function a rule. Together they send one request a batch.

    Args:
        server: URL of `encore serve`, or a client with other limits or headers.
        is_async: True for coroutine functions, which TRL runs beside other rewards.

    Raises:
        RewardUnavailableError: The server did not answer within the client's time limit.
    """
    client = shared_client(server) if isinstance(server, str) else server
    batch = BatchRewards(client)
    kind = AsyncRuleReward if is_async else RuleReward
    rewards = RuleRewards(kind(rule_id, batch) for rule_id in client.model.weights)
    rewards.weights = [*client.model.weights.values()]
    return rewards


def reward(server: str | RewardClient) -> ComposedReward:
    """Return the composed reward as one reward function.

    Args:
        server: URL of `encore serve`, or a client with other limits or headers.
    """
    return ComposedReward(shared_client(server) if isinstance(server, str) else server)
