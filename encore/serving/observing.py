"""One log line and one count a request: path, status, sizes, time; never a text of a client."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from encore.serving.metrics import ServerMetrics

_log = logging.getLogger(__name__)

#: Of a client that went away before there was one: as web servers write it.
NO_ANSWER = 499
_SIZE_KEY = "encore.size"
_OTHER = "other"


@dataclass(slots=True, kw_only=True)
class RequestSize:
    """What was asked for, as far as it could be read."""

    num_texts: int = 0
    num_tokens: int = 0


def size_of(scope: Scope) -> RequestSize:
    """Where an endpoint notes the size of its request."""
    found = scope[_SIZE_KEY]
    assert isinstance(found, RequestSize)
    return found


def note_refused(status: int, reason: str, *, metrics: ServerMetrics) -> None:
    """Log and count an answer to what never became a request.

    Args:
        status: Of the answer.
        reason: One of the server's own sentences.
        metrics: Where it is counted.
    """
    metrics.refused(status=status)
    _log.info("no request: %d, %s", status, reason)


class Observed:
    """An application whose requests are logged and counted.

    Args:
        app: The application.
        metrics: Where they are counted.
        paths: The paths it knows; all others count as one, since a path is a client's text too.
    """

    def __init__(self, app: ASGIApp, *, metrics: ServerMetrics, paths: Collection[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        size = scope[_SIZE_KEY] = RequestSize()
        status = NO_ANSWER

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note_status)
        finally:
            path = scope["path"] if scope["path"] in self._paths else _OTHER
            seconds = time.perf_counter() - started
            self._metrics.answered(path=path, status=status, seconds=seconds)
            _log.info(
                "%s %s: %d, %d texts, %d tokens, %.0f ms",
                _method(scope),
                path,
                status,
                size.num_texts,
                size.num_tokens,
                1000 * seconds,
            )


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return method if method in ("GET", "HEAD", "POST") else _OTHER
