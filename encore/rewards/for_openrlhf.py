"""Rewards for OpenRLHF: a local function for ``--reward.remote_url FILE.py``.

The file needs one line: ``from encore.rewards.for_openrlhf import reward_func``. Against the URL
itself as ``--reward.remote_url`` it adds longer retries and scores from 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from encore.core.errors import InputError
from encore.rewards.reward_client import shared_client


def reward_func(
    queries: Sequence[str],
    prompts: Sequence[str],
    labels: Sequence[Any],  # noqa: ARG001  # OpenRLHF's names
    **_options: Any,
) -> dict[str, Any]:
    """Return ``rewards``, ``scores`` and ``extra_logs`` of texts.

    ``scores``, which dynamic filtering compares with its range in 0 to 1, are the rewards on the
    scale of the ratings: with the mean added, and cut off at 0 and 1.

    Args:
        queries: Prompt and response in one text, as the policy's tokenizer decodes them.
        prompts: The prompt alone of each query.
        labels: Labels of the data, which are not read.

    Raises:
        InputError: The answer has not one finite number for each text.
        RewardUnavailableError: There is no reward within the client's time limit.
    """
    client = shared_client()
    answer = client.post("/get_reward", {"query": [*queries], "prompts": [*prompts]})
    rewards, mean = answer["rewards"], client.model.reward_mean
    try:
        are_finite = all(map(math.isfinite, rewards))
    except (TypeError, OverflowError):
        are_finite = False
    if not are_finite or len(rewards) != len(queries):
        raise InputError(
            f"{client.url}: {len(rewards)} rewards for {len(queries)} texts "
            f"({str(rewards)[:200]}); expected a finite number for each: see the server's log"
        )
    scores = [min(1.0, max(0.0, reward + mean)) for reward in rewards]
    return {"rewards": rewards, "scores": scores, "extra_logs": answer["extra_logs"]}
