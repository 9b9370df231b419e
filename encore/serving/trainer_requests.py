"""Requests and answers of trainers, in the shapes that their own clients send and read.

Each shape is a record of the request and a function from the rewards of its texts to the answer.
A shape without a place for an error refuses the whole request: a failure is never a reward.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import ConfigDict, FailFast, Field, StrictStr, model_validator

from encore.serving.reward_requests import (
    MAX_TURNS,
    Conversation,
    GeneratedConversation,
    Record,
    RewardRequest,
    Turn,
    refuse_infinite_numbers,
)
from encore.serving.scored_texts import ScoredTexts

#: Roles of OpenAI's messages, as the roles that chat templates take.
_ROLES: Mapping[Any, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


class EvaluationRequest(Record):
    """A request of LLaMA-Factory's PPO, which also has the shape of its own server."""

    model: str
    texts: Annotated[list[StrictStr], FailFast(), Field(min_length=1, alias="messages")]
    max_length: int | None = None


class GenerationRequest(Record):
    """A request of slime and miles: one prompt, as rendered text or as messages, one response."""

    prompt: StrictStr | Annotated[list[Turn], Field(min_length=1, max_length=MAX_TURNS)]
    response: StrictStr
    label: Any = None

    @property
    def texts(self) -> list[str | Conversation]:
        """Return the only text."""
        if isinstance(self.prompt, str):
            return [self.prompt + self.response]
        return [GeneratedConversation(messages=self.prompt, response=self.response)]


class ClassifyRequest(Record):
    """A request of vLLM's `POST /classify`; further parameters are refused."""

    input: StrictStr | Annotated[list[StrictStr], Field(min_length=1)]
    model: str | None = None
    user: str | None = None
    use_activation: bool | None = None
    add_special_tokens: bool = True

    @property
    def texts(self) -> list[str]:
        """Return the texts."""
        return [self.input] if isinstance(self.input, str) else self.input

    @model_validator(mode="after")
    def _no_activation(self) -> Self:
        if self.use_activation is not False:
            raise ValueError('a reward has no activation; send "use_activation": false')
        return self


class VerifyRequest(Record):
    """A rollout of NeMo Gym. The keys of its task are kept and sent back."""

    model_config = ConfigDict(extra="allow")
    responses_create_params: dict[str, Any]
    response: dict[str, Any]

    @model_validator(mode="after")
    def _check_messages(self) -> Self:
        refuse_infinite_numbers(self.model_dump(exclude={"texts"}))  # the answer has them again
        self.texts  # noqa: B018  # reads the messages, and refuses others
        return self

    @cached_property
    def texts(self) -> list[Conversation]:
        """Return the messages of the rollout; the last message of the output is the response."""
        params = self.responses_create_params
        prompt = params.get("input")
        turns = (
            [] if params.get("instructions") is None else [_turn("system", params["instructions"])]
        )
        turns += [_turn("user", prompt)] if isinstance(prompt, str) else _turns("input", prompt)
        output = _turns("output", self.response.get("output"))
        # A response may be cut off within its thinking, before it says anything.
        last = output.pop() if output else Turn(role="assistant", content="")
        if last.role != "assistant":
            raise ValueError(
                f"output: it ends with role {last.role}, expected the assistant's message"
            )
        if not 0 < len(turns + output) <= MAX_TURNS:
            raise ValueError(f"{len(turns + output)} messages, expected 1 to {MAX_TURNS}")
        return [Conversation(messages=turns + output, response=last.content)]


class SessionRequest(Record):
    """Begin or end of a session of NeMo Gym; a reward server keeps none."""

    model_config = ConfigDict(extra="ignore")
    resources_session_id: str | None = None


class AggregateRequest(Record):
    """Answers of `POST /verify` whose numbers NeMo Gym wants to log."""

    verify_responses: list[dict[str, Any]]

    @model_validator(mode="after")
    def _are_finite(self) -> Self:
        refuse_infinite_numbers(self.verify_responses, name="verify_responses")
        return self


def _turns(name: str, items: Any) -> list[Turn]:
    """Return the messages of OpenAI's Responses API; thinking is left out.

    Raises:
        ValueError: The items have something else than messages of text.
    """
    if not isinstance(items, list):
        raise ValueError(f"{name}: expected a list of messages")
    turns = []
    for item in items:
        kind = item.get("type", "message") if isinstance(item, dict) else type(item).__name__
        if kind == "reasoning":
            continue
        if kind != "message" or item.get("role") not in _ROLES:
            raise ValueError(
                f"{name}: an item of type {kind!a}; a reward model reads messages alone"
            )
        turns.append(_turn(_ROLES[item["role"]], item.get("content")))
    return turns


def _turn(role: Literal["system", "user", "assistant"], content: Any) -> Turn:
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        are_texts = all(isinstance(text, str) for text in texts)
        content = "".join(map(str, texts)) if are_texts else None
    if not isinstance(content, str):
        raise ValueError(f"a message of role {role} has a part that is not text")
    return Turn(role=role, content=content)


def answer_openrlhf(_request: RewardRequest, texts: ScoredTexts) -> dict[str, Any]:
    """Answer with rewards, and ``scores``, which are equal to them.

    Clients filter by ``scores``. ``extra_logs`` has every rule's score on the scale of its ratings,
    and its deviation from the training's held-out responses in their sd.
    """
    rewards = [text.reward for text in texts.rewards]
    score_NR = np.array([text.score_R for text in texts.rewards])
    columns = (score_NR + texts.composer.mean_R).T.tolist()
    logs = dict(zip(texts.composer.head_ids, columns, strict=True))
    for head_id, drift_N in texts.scale.deviations(score_NR).items():
        logs[f"drift_sd/{head_id}"] = drift_N.tolist()
    return {"rewards": rewards, "scores": rewards, "extra_logs": logs}


def answer_llama_factory(request: EvaluationRequest, texts: ScoredTexts) -> dict[str, Any]:
    """Answer with the reward of each text."""
    return {
        "id": f"scoreval-{uuid.uuid4().hex}",
        "object": "score.evaluation",
        "model": request.model,
        "scores": [text.reward for text in texts.rewards],
    }


def answer_number(_request: GenerationRequest, texts: ScoredTexts) -> float:
    """Answer with the reward alone."""
    return texts.rewards[0].reward


def answer_components(_request: GenerationRequest, texts: ScoredTexts) -> dict[str, float]:
    """Answer with the reward and each rule's part of it; the client's ``--reward-key`` chooses."""
    [text] = texts.rewards
    return {**texts.contributions(text), "reward": text.reward}


def answer_vllm(_request: ClassifyRequest, texts: ScoredTexts) -> dict[str, Any]:
    """Answer with centred scores of the rules as labels, and the reward as the last label."""
    data = []
    for index, text in enumerate(texts.rewards):
        values = [*text.score_R.tolist(), text.reward]
        labels = {"index": index, "label": "reward", "probs": values, "num_classes": len(values)}
        data.append(labels)
    usage = {"prompt_tokens": texts.num_tokens, "total_tokens": texts.num_tokens}
    return {
        "id": f"classify-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": texts.model_fields["model"],
        "data": data,
        "usage": {**usage, "completion_tokens": 0, "prompt_tokens_details": None},
    }


def answer_nemo_gym(request: VerifyRequest, texts: ScoredTexts) -> dict[str, Any]:
    """Answer with the request and its reward, which is the sum of ``reward_components``.

    The rules are there a second time beside the reward, since NeMo Gym logs only those numbers. A
    key of the request is never replaced by a rule of the same name.
    """
    components = texts.contributions(texts.rewards[0])
    reward = sum(components.values())
    body = request.model_dump(exclude={"texts"})
    return {**components, **body, "reward": reward, "reward_components": components}


def answer_session(request: SessionRequest) -> dict[str, Any]:
    """Answer that the session has begun, or has ended."""
    return request.model_dump(exclude_none=True)


def answer_aggregate(request: AggregateRequest) -> dict[str, Any]:
    """Answer with the mean of each number of the answers of `POST /verify`."""
    columns: dict[str, list[float]] = {}
    for row in request.verify_responses:
        for name, value in row.items():
            if isinstance(value, int | float) and not name.startswith("_"):
                columns.setdefault(name, []).append(value)
    # Divided first: a sum of finite numbers may be infinite, their mean is not.
    means = {
        f"mean/{name}": math.fsum(value / len(values) for value in values)
        for name, values in columns.items()
    }
    headline = {name: value for name, value in means.items() if name == "mean/reward"}
    return {"group_level_metrics": [], "agent_metrics": means, "key_metrics": headline}


#: Paths of requests with texts: the record of the request and the answer of its rewards.
TEXT_SHAPES: dict[str, tuple[Any, Callable[[Any, ScoredTexts], Any]]] = {
    # Clients of OpenRLHF are given a whole URL; URLs with and without a path are in use.
    "/get_reward": (RewardRequest, answer_openrlhf),
    "/": (RewardRequest, answer_openrlhf),
    "/v1/score/evaluation": (EvaluationRequest, answer_llama_factory),
    "/reward": (GenerationRequest, answer_number),
    "/reward/components": (GenerationRequest, answer_components),
    "/classify": (ClassifyRequest, answer_vllm),
    "/verify": (VerifyRequest, answer_nemo_gym),
}
#: Paths of requests that need no model.
PLAIN_SHAPES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "/seed_session": (SessionRequest, answer_session),
    "/close_session": (SessionRequest, answer_session),
    "/aggregate_metrics": (AggregateRequest, answer_aggregate),
}
