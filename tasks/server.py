"""The Prefect server may be away for minutes: work goes on, and what is to be shown waits.

Prefect's own client tries a call again for more than a minute, in the thread that made it, and then
raises. While a stage works, the server is called through `best_effort` alone.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from threading import Lock
from typing import TypeVar

import httpx
from prefect import get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import MissingContextError, PrefectException
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

Result = TypeVar("Result")

#: A server that is well answers in milliseconds, a busy one within a second.
_ANSWER_SECONDS = 5.0
#: After a call without an answer, no other is tried for so long; where a link is cut, a call takes
#: 14 s to fail (Prefect's client connects four times), so the pause grows with it.
_PAUSE_SECONDS, _PAUSE_SHARE, _LONGEST_PAUSE_SECONDS = 10.0, 10.0, 60.0
_POLL_SECONDS = 2.0
_LONGEST_WAIT_SECONDS = 3600.0


@dataclass(slots=True)
class _Known:
    """What the threads of this process know of the server."""

    lock: Lock = field(default_factory=Lock)
    is_away: bool = False
    not_before: float = 0.0
    waiting: dict[str, Callable[[], object]] = field(default_factory=dict)


_known = _Known()


def server_answers() -> bool:
    """Whether the Prefect server answers at once; without PREFECT_API_URL there is none to lose."""
    url = PREFECT_API_URL.value()
    if not url:
        return True
    with temporary_settings(updates={PREFECT_CLIENT_MAX_RETRIES: 0}):
        return _asking_client(url).api_healthcheck() is None


@lru_cache(maxsize=2)
def _asking_client(_url: str) -> SyncPrefectClient:
    """A client with a short time limit; it is kept, because its making takes longer than to ask."""
    settings = {"timeout": httpx.Timeout(_ANSWER_SECONDS)}
    return get_client(httpx_settings=settings, sync_client=True)


def best_effort(call: Callable[[], Result], *, later: str | None = None) -> Result | None:
    """Call the Prefect server for something that the work can do without.

    Args:
        call: What is called.
        later: A name. If the server is away, the call is made when it is back, unless another call
            of this name has come since.

    Returns: The call's result; None if the server is away or refused the call, which is logged.
    """
    # A call that waits is made in the run's context that it has here, whichever thread makes it.
    with temporary_settings(updates={PREFECT_CLIENT_MAX_RETRIES: 1}):
        attempt = partial(contextvars.copy_context().run, call)
    with _known.lock:
        _known.waiting.pop(later or "", None)
        is_paused = time.monotonic() < _known.not_before
    result, is_made = (None, False) if is_paused else _make(attempt)
    if is_made:
        _make_waiting_calls()
    elif later is not None:
        with _known.lock:
            _known.waiting.setdefault(later, attempt)
    return result


def is_server_away() -> bool:
    """Whether the last call of the server that was tried had no answer."""
    return _known.is_away


def wait_for_server(*, timeout_seconds: float = _LONGEST_WAIT_SECONDS) -> bool:
    """Wait until the Prefect server answers, then make the calls that wait for it.

    For the end of a flow: Prefect's own call, which tells the final state, then succeeds.

    Returns: Whether it answers.
    """
    began = time.monotonic()
    if not server_answers():
        run_logger().warning(
            "Prefect server %s does not answer; the work is done, and the run waits up to %.0f "
            "minutes for the server before it ends",
            *(PREFECT_API_URL.value(), timeout_seconds / 60),
        )
        while not server_answers():
            if time.monotonic() - began > timeout_seconds:
                run_logger().error("Prefect server %s is still away", PREFECT_API_URL.value())
                return False
            time.sleep(_POLL_SECONDS)
        run_logger().info("Prefect server is back after %.0f s", time.monotonic() - began)
    _make_waiting_calls()
    return True


def forget_waiting_calls() -> None:
    """Drop the calls that wait: they belong to a flow run that is over."""
    with _known.lock:
        _known.waiting.clear()


def run_logger() -> logging.Logger | logging.LoggerAdapter[logging.Logger]:
    """The log of the flow run at hand; this module's in a thread that knows of no run."""
    with contextlib.suppress(MissingContextError):
        return get_run_logger()
    return logging.getLogger(__name__)


def _make(attempt: Callable[[], Result]) -> tuple[Result | None, bool]:
    """A call's result, and whether it reached the server."""
    began = time.monotonic()
    with _known.lock:
        if _known.is_away:  # the other threads go on meanwhile
            _known.not_before = began + _LONGEST_PAUSE_SECONDS
    reason = f"no answer in {_ANSWER_SECONDS:g} s"
    try:
        if server_answers():
            result = attempt()
            _note(is_away=False)
            return result, True
    except (httpx.HTTPError, PrefectException) as error:
        is_status = isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500
        if is_status or not isinstance(error, httpx.HTTPError):
            run_logger().warning("Prefect server refused a call (%s); the stage goes on", error)
            _note(is_away=False)
            return None, True
        reason = str(error) or type(error).__name__
    _note(is_away=True, reason=reason, seconds=time.monotonic() - began)
    return None, False


def _note(*, is_away: bool, reason: str = "", seconds: float = 0.0) -> None:
    """Log that the server went away or came back, once; ``seconds``: how long that took."""
    pause = max(_PAUSE_SECONDS, min(_PAUSE_SHARE * seconds, _LONGEST_PAUSE_SECONDS))
    with _known.lock:
        was_away, _known.is_away = _known.is_away, is_away
        _known.not_before = time.monotonic() + pause if is_away else 0.0
    if is_away and not was_away:
        run_logger().warning("Prefect server is away (%s); the stage goes on", reason)
    elif was_away and not is_away:
        run_logger().info("Prefect server is back")


def _make_waiting_calls() -> None:
    with _known.lock:
        waiting = dict(_known.waiting)
        _known.waiting.clear()
    while waiting:
        name, attempt = next(iter(waiting.items()))
        if not _make(attempt)[1]:
            with _known.lock:
                _known.waiting = waiting | _known.waiting
            return
        del waiting[name]
