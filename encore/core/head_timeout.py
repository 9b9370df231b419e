"""Close connections on which no complete head of a request arrives in time.

uvicorn waits for a head without end. Some thousand clients that send half of one would otherwise
take every connection, and the server would refuse all others.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds within which the head of a request must arrive, counted from the connection or from the
#: first byte after an answer.
HEAD_SECONDS = 10.0


class HeadTimeoutProtocol(H11Protocol):
    """A connection that is closed if it sends no complete head within `HEAD_SECONDS`.

    If the server has as many connections as it may, the one that has waited longest for its head is
    closed for the newest.
    """

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first head; make room if there is none."""
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._close_longest_waiting()
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request; begin to wait if it is the first part of a head."""
        earlier_cycle: Any = self.cycle  # None before the first request
        if self._head_timer is None and (earlier_cycle is None or earlier_cycle.response_complete):
            self._await_head()
        super().data_received(data)
        if self.cycle is not earlier_cycle:  # the head is complete
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_longest_waiting(self) -> None:
        waiting = [
            (timer.when(), id(connection), connection)
            for connection in self.connections
            if isinstance(connection, HeadTimeoutProtocol)
            and (timer := connection._head_timer) is not None
        ]
        if waiting:
            _, _, connection = min(waiting)
            self.connections.discard(connection)  # it does not count from now on
            connection._stop_waiting()
            connection.transport.abort()
