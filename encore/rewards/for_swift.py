"""Rewards for ms-swift: one class a rule of its `ORM` form. `register` needs ms-swift.

A plug-in file for ``--external_plugins`` has two lines:

    from encore.rewards.for_swift import register

    register("http://127.0.0.1:5000")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from encore.core.errors import InputError
from encore.rewards.for_trl import BatchRewards, RuleReward
from encore.rewards.reward_client import RewardClient, shared_client


def register(server: str | RewardClient | None = None) -> tuple[str, ...]:
    """Register one reward a rule for ``--reward_funcs``, and return their names, the rule ids.

    Together they send one request a batch.

    Args:
        server: URL of `encore serve`, or a client with other limits or headers; default: the
            variable ``ENCORE_REWARD_URL``.

    Raises:
        InputError: A rule is called like a reward that ms-swift has.
    """
    from swift.rewards import ORM, orms

    client = server if isinstance(server, RewardClient) else shared_client(server)
    rule_ids = (*client.model.weights,)
    if taken_ids := sorted(orms.keys() & {*rule_ids}):
        raise InputError(
            f"rules called like rewards of ms-swift: {', '.join(taken_ids)}; rename them"
        )
    batch = BatchRewards(client)
    for rule_id in rule_ids:
        orms[rule_id] = _rule_class(ORM, RuleReward(rule_id, batch))
    return rule_ids


def _rule_class(base: type, rule: RuleReward) -> type:
    """Return a class whose instances score completions by one rule. ms-swift logs its name."""

    def score(
        _self: object,
        completions: Sequence[str],
        *,
        messages: Sequence[Sequence[dict[str, Any]]],
        **_columns: object,
    ) -> list[float | None]:
        """Return the score of each completion; the last message of a conversation is replaced."""
        return rule([turns[:-1] for turns in messages], completions)

    return type(rule.__name__, (base,), {"__call__": score})
