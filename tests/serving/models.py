"""A reward model with three heads on the demo's backbone, and servers around it."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import torch
from numpy.typing import NDArray

from encore.data.records import Message
from encore.demo import JUDGE_PATH
from encore.export.weights_input import Composition
from encore.model.backbone_config import BackboneConfig
from encore.model.loading import load_reward_model, load_tokenizer
from encore.model.opening import OpenedModel
from encore.model.score_sequences import score_sequences
from encore.serving.listening import listen, make_server, url_of
from encore.serving.reward_app import RewardApp
from encore.serving.serve_config import ServeLimits

HEAD_IDS = ("privacy", "no-violence", "honesty")
WEIGHTS = {"honesty": 0.5, "privacy": 0.2, "no-violence": 0.3}  # not in head order
MEANS = (0.9, 0.25, 0.5)
MAX_LENGTH = 256
PATIENCE = 60.0

Conversation = tuple[Sequence[Message], str]


def make_conversations(count: int) -> list[Conversation]:
    """Return short conversations of one or three turns, all different."""
    conversations: list[Conversation] = []
    for number in range(count):
        turns = [Message(role="user", content=f"Question {number}, please? é ≥ {number}")]
        if number % 2:
            turns.append(Message(role="assistant", content="Which one?"))
            turns.append(Message(role="user", content="The first. " * (number % 7)))
        conversations.append((turns, f"Answer {number}: " + "no, sorry. " * (number % 11)))
    return conversations


@functools.cache
def opened_model() -> OpenedModel:
    """Return seeded heads on the demo judge's backbone; tests never change the model."""
    config = BackboneConfig(model=str(JUDGE_PATH), max_length=MAX_LENGTH)
    model = load_reward_model(config, head_ids=HEAD_IDS)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        model.heads.weight.normal_(std=0.05, generator=generator)
        model.mean_R.copy_(torch.tensor(MEANS, dtype=torch.float64))
    return OpenedModel(
        model=model.eval(),
        tokenizer=load_tokenizer(config),
        metadata={},
        name="three-heads",
        digest="d" * 64,
    )


def score_offline(conversations: Sequence[Conversation]) -> NDArray[np.float64]:
    """Score conversations one at a time without a server: score_NR."""
    opened = opened_model()
    rows = [
        score_sequences(
            opened.model,
            [opened.tokenizer.encode(prompt, response).token_ids],
            pad_token_id=opened.tokenizer.pad_token_id,
        )
        for prompt, response in conversations
    ]
    return np.concatenate(rows).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that answers on loopback."""

    url: str
    port: int

    def post(self, path: str, body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=PATIENCE)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=PATIENCE)


def as_json(prompt: Sequence[Message], response: str) -> dict[str, Any]:
    """Return a conversation in the form that POST /score reads."""
    messages = [{"role": turn.role, "content": turn.content} for turn in prompt]
    return {"messages": messages, "response": response}


@contextlib.contextmanager
def running(
    opened: OpenedModel | None = None,
    *,
    weights: Mapping[str, float] = WEIGHTS,
    stop_seconds: int = 25,
    **limits: Any,
) -> Iterator[Running]:
    """Run a server in a thread of this process; stop it afterwards."""
    listener = listen("127.0.0.1", 0)
    is_ready = threading.Event()
    app = RewardApp(
        opened or opened_model(),
        composition=Composition(weights=weights, scheme="given"),
        limits=ServeLimits(**limits),
        on_ready=lambda _: is_ready.set(),
    )
    server = make_server(app, stop_seconds=stop_seconds)
    thread = threading.Thread(target=server.run, args=([listener],), name="server")
    thread.start()
    try:
        assert is_ready.wait(PATIENCE)
        yield Running(url=url_of(listener), port=listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()
