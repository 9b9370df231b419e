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
from encore.demo import judge_path
from encore.export.weights_input import Composition
from encore.model.config import BackboneConfig
from encore.model.loading import load_reward_model, load_tokenizer
from encore.model.opening import OpenedModel
from encore.model.scoring import score_sequences
from encore.serving.reward_server import listen, make_server, url_of
from encore.serving.serve_config import ServeLimits

HEAD_IDS = ("privacy", "no-violence", "honesty")
WEIGHTS = {"honesty": 0.5, "privacy": 0.2, "no-violence": 0.3}  # not in head order
MEANS = (0.9, 0.25, 0.5)
MAX_LENGTH = 256
PATIENCE = 60.0


@functools.cache
def opened_model() -> OpenedModel:
    """Seeded heads on the demo judge's trunk; never changed by a test."""
    config = BackboneConfig(model=str(judge_path()), max_length=MAX_LENGTH)
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


#: The weights in head order: a reward is the weighted sum of centred scores.
WEIGHT_R = np.array([WEIGHTS[head_id] for head_id in HEAD_IDS])


def offline(conversations: Sequence[tuple[Sequence[Message], str]]) -> NDArray[np.float64]:
    """What the heads say without a server, one conversation after the other: [N, R]."""
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

    def score(self, *conversations: tuple[Sequence[Message], str]) -> list[dict[str, Any]]:
        """The results of POST /score."""
        answer = self.post("/score", {"conversations": [as_json(*one) for one in conversations]})
        assert answer.status_code == 200, answer.text
        return list(answer.json()["results"])

    def metric(self, name: str) -> float:
        """One number of GET /metrics."""
        lines = self.get("/metrics").text.splitlines()
        [value] = [line.rpartition(" ")[2] for line in lines if line.rpartition(" ")[0] == name]
        return float(value)


def as_json(prompt: Sequence[Message], response: str) -> dict[str, Any]:
    """A conversation as POST /score takes it."""
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
    """A server in a thread of this process; it has stopped afterwards."""
    listener = listen("127.0.0.1", 0)
    is_ready = threading.Event()
    server = make_server(
        opened or opened_model(),
        composition=Composition(weights=weights, scheme="given"),
        limits=ServeLimits(**limits),
        stop_seconds=stop_seconds,
        on_ready=is_ready.set,
    )
    found = Running(url=url_of(listener), port=listener.getsockname()[1])
    thread = threading.Thread(target=server.run, args=([listener],), name="server")
    thread.start()
    try:
        assert is_ready.wait(PATIENCE)
        yield found
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()
