"""HTTP/1.1 as uvicorn speaks it, with two deadlines more, and JSON reasons.

uvicorn waits for ever for the head of a request: its deadline for idle connections ends when a
byte arrives, so that a client that sends one and hangs would keep its connection. It also waits for
ever for a client to take its answer, and closing a connection waits for the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class RewardProtocol(H11Protocol):
    """One connection.

    Attributes:
        head_seconds: Time for a request's head to arrive, and for the rest of a body that has been
            answered already.
        answer_seconds: Time for the client to take what it was answered, from when some of it had
            to wait; then the connection is cut.
        on_refused: Told the status and the reason of an answer that no application gave.
    """

    head_seconds: float
    answer_seconds: float
    on_refused: Callable[[int, str], None]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._answer_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The clock starts with the connection."""
        super().connection_made(transport)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """It stops with it."""
        self._stop_clock()
        self._stop_answer_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """It runs while bytes come that belong to no request that is being answered."""
        if not self.transport.get_write_buffer_size():  # all answers so far are taken
            self._stop_answer_clock()
        super().data_received(data)
        if self._is_answering:
            self._stop_clock()
        elif self._deadline is None and not self.transport.is_closing():
            self._start_clock()

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP hears so in JSON."""
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def on_response_complete(self) -> None:
        """What the client has not taken at once has a deadline."""
        super().on_response_complete()
        self._start_answer_clock()

    def pause_writing(self) -> None:
        """The same for answers to requests that were sent one after the other without listening."""
        super().pause_writing()
        self._start_answer_clock()

    def _start_answer_clock(self) -> None:
        if self._answer_deadline is None and self.transport.get_write_buffer_size():
            self._answer_deadline = self.loop.call_later(self.answer_seconds, self._cut_off)

    def _stop_answer_clock(self) -> None:
        if self._answer_deadline is not None:
            self._answer_deadline.cancel()
            self._answer_deadline = None

    def _cut_off(self) -> None:
        self._answer_deadline = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    @property
    def _is_answering(self) -> bool:
        # None before the first request, whatever its annotation says.
        return not getattr(self.cycle, "response_complete", True)

    def _start_clock(self) -> None:
        self._deadline = self.loop.call_later(self.head_seconds, self._time_is_up)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _time_is_up(self) -> None:
        self._deadline = None
        if not self._is_answering:
            reason = f"no request arrived within {self.head_seconds:g} s"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, reason)

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        if self.transport.is_closing():
            return
        # Where an answer has begun, a second one would be read as part of it.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": reason}).encode()
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode("ascii") + body)
            self.on_refused(status.value, reason)
        self.transport.close()
        self._start_answer_clock()


def protocol_class(
    *, head_seconds: float, answer_seconds: float, on_refused: Callable[[int, str], None]
) -> type[RewardProtocol]:
    """The protocol with a server's deadlines; uvicorn makes one for every connection."""
    named = {
        "head_seconds": head_seconds,
        "answer_seconds": answer_seconds,
        "on_refused": staticmethod(on_refused),
    }
    return type("RewardProtocol", (RewardProtocol,), named)
