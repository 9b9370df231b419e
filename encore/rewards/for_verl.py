"""Rewards for verl: `compute_score`, for ``custom_reward_function.path=pkg://encore.rewards.for_verl``.

verl asks for one text a call, many at a time, which the server computes together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from encore.core.errors import InputError
from encore.rewards.conversations import conversation_json
from encore.rewards.reward_client import shared_client


async def compute_score(
    data_source: str,  # noqa: ARG001  # verl calls it with these names
    solution_str: str,
    ground_truth: Any = None,  # noqa: ARG001
    extra_info: Mapping[str, Any] | None = None,
    *,
    url: str | None = None,
    prompt_key: str = "prompt",
    **_options: Any,
) -> dict[str, float]:
    """Return the composed reward as ``score``, and each rule's centred score under its id.

    A rule that the server left out of this text's reward is 0 here, which is its mean: verl takes
    numbers alone, and all texts of a group leave out the same rules.

    Args:
        data_source: Name of the data set, which is not read.
        solution_str: Text of the response, without special tokens.
        ground_truth: The expected answer, which is not read.
        extra_info: The data's column of this name, which must hold the prompt.
        url: Server, from ``reward_kwargs``; default: the variable ``ENCORE_REWARD_URL``.
        prompt_key: Key of the prompt in ``extra_info``: a text, or messages.

    Raises:
        InputError: ``extra_info`` has no prompt.
        RewardUnavailableError: There is no reward within the client's time limit.
    """
    prompt = (extra_info or {}).get(prompt_key)
    if prompt is None:
        raise InputError(
            f"extra_info has no {prompt_key!r}; verl does not give a reward function the prompt: "
            f"add it to the data's column extra_info, or name its key by "
            "+reward.custom_reward_function.reward_kwargs.prompt_key=KEY"
        )
    text = conversation_json(prompt if isinstance(prompt, str) else [*prompt], solution_str)
    [reward] = await shared_client(url).score_async([text])
    scores = {
        rule_id: 0.0 if rule_id in reward.left_out else score
        for rule_id, score in reward.scores.items()
    }
    if "score" in scores:
        raise InputError("a rule has the id 'score', which is verl's name of the reward; rename it")
    return {"score": reward.reward, **scores}
