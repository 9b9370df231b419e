"""Servers of applications in threads of this process, and offline scores to compare with."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from starlette.types import ASGIApp

from encore.core.listening import listen, make_server, url_of
from encore.data.records import Message
from encore.exports.weights_input import Composition
from encore.model.open_model import OpenedModel
from encore.model.score_sequences import score_sequences
from encore.serving.host_guard import host_names
from encore.serving.reward_app import RewardApp
from encore.serving.serve_options import RuleUse, ServeLimits
from tests.worlds.models import WEIGHTS, opened_model

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


def score_offline(conversations: Sequence[Conversation]) -> NDArray[np.float64]:
    """Score conversations one at a time without a server: score_NR."""
    opened = opened_model()
    pad_token_id = opened.tokenizer.pad_token_id
    sequences = [opened.tokenizer.encode(*dialogue).token_ids for dialogue in conversations]
    rows = [
        score_sequences(opened.model, [token_ids], pad_token_id=pad_token_id)
        for token_ids in sequences
    ]
    return np.concatenate(rows).astype(np.float64)


@contextlib.contextmanager
def answering(
    app: ASGIApp, listener: socket.socket, *, stop_seconds: int = 25, max_connections: int = 4096
) -> Iterator[str]:
    """Answer requests of a listener in a thread of this process; yield the URL."""
    server = make_server(app, stop_seconds=stop_seconds, max_connections=max_connections)
    thread = threading.Thread(target=server.run, args=([listener],), name="server")
    thread.start()
    try:
        yield url_of(listener)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that answers on loopback."""

    url: str
    port: int

    def post(self, path: str, body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=PATIENCE)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=PATIENCE)


@contextlib.contextmanager
def running(
    opened: OpenedModel | None = None,
    *,
    weights: Mapping[str, float] = WEIGHTS,
    stop_seconds: int = 25,
    use: Mapping[str, Any] | None = None,
    threshold: float | None = None,
    hosts: Sequence[str] = (),
    max_connections: int = 4096,
    **limits: Any,
) -> Iterator[Running]:
    """Serve a model, by default `opened_model`, in a thread of this process."""
    app = RewardApp(
        opened or opened_model(),
        composition=Composition(weights=weights, scheme="given"),
        limits=ServeLimits(**limits),
        on_ready=lambda _app: None,
        use=RuleUse.model_validate(use or {}),
        threshold=threshold,
        hosts=host_names("127.0.0.1", further=hosts),
    )
    with (
        listen("127.0.0.1", 0) as listener,
        answering(app, listener, stop_seconds=stop_seconds, max_connections=max_connections) as url,
    ):
        yield Running(url=url, port=listener.getsockname()[1])
