"""Call a Prefect server that may be away for minutes: the work goes on, and calls wait for it.

Prefect's own client tries a call again for more than a minute, in the thread that made it, and then
raises. While a stage works, the server is called through `best_effort` alone. The states of tasks
are events, which Prefect's client keeps until a server takes them.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from threading import Lock
from typing import TypeVar

import httpx
from prefect import get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import TaskRun
from prefect.context import SettingsContext, TaskRunContext, get_settings_context
from prefect.exceptions import MissingContextError, PrefectException
from prefect.settings import PREFECT_API_URL
from prefect.utilities.engine import emit_task_run_state_change_event

Result = TypeVar("Result")

#: A healthy server answers in milliseconds, a busy one within a second.
_ANSWER_SECONDS = 5.0
#: After a call without an answer, no other is tried for at least ten seconds. Where a link is cut,
#: a call takes 14 s to fail (Prefect's client connects four times), so the pause grows with it.
_MIN_PAUSE_SECONDS, _PAUSE_PER_SECOND, _MAX_PAUSE_SECONDS = 10.0, 10.0, 60.0
_POLL_SECONDS = 2.0
_MAX_WAIT_SECONDS = 3600.0
#: Newest task runs of which a server that comes back is told again.
_MAX_RECENT = 2000
#: Loggers of Prefect that write a line for each event that a server which is away does not take.
_EVENT_LOGGERS = ("prefect.events.clients", "prefect._internal.concurrency")
#: Further lines of an outage come within so long.
_OUTAGE_LINE_SECONDS = 120.0


@dataclass(slots=True)
class _ServerState:
    """State of the Prefect server, as the threads of this process know it.

    Attributes:
        lock: Held while another field is read or changed.
        is_away: True if the last call had no answer.
        next_call: Monotonic time before which no call is tried.
        waiting_calls: Calls to make when the server is back, by name.
        recent_task_runs: Newest task runs of the flow run.
        flow_context: Context of the flow run.
        last_event_line: Time of the last line on an event that found no server.
    """

    lock: Lock = field(default_factory=Lock)
    is_away: bool = False
    next_call: float = 0.0
    waiting_calls: dict[str, Callable[[], object]] = field(default_factory=dict)
    last_event_line: float = 0.0
    recent_task_runs: deque[TaskRun] = field(default_factory=lambda: deque(maxlen=_MAX_RECENT))
    flow_context: contextvars.Context = field(default_factory=contextvars.copy_context)


_server = _ServerState()


def server_answers() -> bool:
    """Return True if the Prefect server answers at once, or if PREFECT_API_URL names none."""
    url = PREFECT_API_URL.value()
    if not url:
        return True
    with _client_retries(0):
        return _health_client(url).api_healthcheck() is None


@lru_cache(maxsize=2)
def _health_client(_url: str) -> SyncPrefectClient:
    """Return a client with a short time limit. It is kept: to make one takes longer than a call."""
    settings = {"timeout": httpx.Timeout(_ANSWER_SECONDS)}
    return get_client(httpx_settings=settings, sync_client=True)


def _client_retries(number: int) -> SettingsContext:
    """Return a context in which Prefect's client tries a call again this often.

    `prefect.settings.temporary_settings` would validate every setting, 0.1 s for each call.
    """
    context = get_settings_context()
    client = context.settings.client.model_copy(update={"max_retries": number})
    settings = context.settings.model_copy(update={"client": client})
    return SettingsContext(profile=context.profile, settings=settings)


def best_effort(call: Callable[[], Result], *, retry_name: str | None = None) -> Result | None:
    """Make a call of the Prefect server that the work can do without.

    Args:
        call: Function without arguments that calls the server.
        retry_name: Name under which the call is made later if the server is away, unless another
            call has taken the name by then. None: the call is dropped.

    Returns:
        The call's result. None if the server is away or refused the call, which is logged.
    """
    # A call that waits is made in the context of this run, whichever thread makes it.
    with _client_retries(1):
        attempt = partial(contextvars.copy_context().run, call)
    with _server.lock:
        _server.waiting_calls.pop(retry_name or "", None)
        is_paused = time.monotonic() < _server.next_call
    result, reached_server = (None, False) if is_paused else _make_call(attempt)
    if reached_server:
        _make_waiting_calls()
    elif retry_name is not None:
        with _server.lock:
            _server.waiting_calls.setdefault(retry_name, attempt)
    return result


def remember_task_run() -> None:
    """Have a server that comes back told again of the task run that this code runs in.

    A server that is killed loses events that it had taken and not stored. One that it knows already
    changes nothing.
    """
    context = TaskRunContext.get()
    assert context is not None, "called in a task"
    _server.recent_task_runs.append(context.task_run)


def _tell_of_recent_task_runs() -> None:
    def tell() -> None:
        for task_run in list(_server.recent_task_runs):
            if task_run.state is not None:
                emit_task_run_state_change_event(task_run, None, task_run.state)

    _server.flow_context.copy().run(tell)  # the events name the flow run


def silence_outage_logs() -> None:
    """Have Prefect's client log that events find no server once an outage, not for each event."""
    for name in _EVENT_LOGGERS:
        logging.getLogger(name).addFilter(_is_news_of_events)


def _is_news_of_events(record: logging.LogRecord) -> bool:
    """Return False for a line on an event that is sent again later."""
    if record.name == "prefect._internal.concurrency":
        return "failed to process item" not in str(record.msg) or "EventsWorker" not in str(
            record.args
        )
    if not str(record.msg).startswith("Unable to connect"):
        return True
    last, _server.last_event_line = _server.last_event_line, record.created
    return record.created - last > _OUTAGE_LINE_SECONDS


def wait_for_server(*, timeout_seconds: float = _MAX_WAIT_SECONDS) -> bool:
    """Wait until the Prefect server answers, then make the calls that wait for it.

    For the end of a flow: Prefect's own call, which tells the final state, then succeeds.

    Returns:
        True if the server answers, False if it is still away after ``timeout_seconds``.
    """
    started_at = time.monotonic()
    if not server_answers():
        run_logger().warning(
            "Prefect server %s does not answer; the work is done, and the run waits up to %.0f "
            "minutes for the server before it ends",
            *(PREFECT_API_URL.value(), timeout_seconds / 60),
        )
        while not server_answers():
            if time.monotonic() - started_at > timeout_seconds:
                run_logger().error("Prefect server %s is still away", PREFECT_API_URL.value())
                return False
            time.sleep(_POLL_SECONDS)
        run_logger().info("Prefect server is back after %.0f s", time.monotonic() - started_at)
        _tell_of_recent_task_runs()
    _make_waiting_calls()
    return True


def begin_flow_run() -> None:
    """Take the current flow run as this process's, and drop the calls that wait for another one."""
    with _server.lock:
        _server.waiting_calls.clear()
        _server.recent_task_runs.clear()
        _server.flow_context = contextvars.copy_context()


def run_logger() -> logging.Logger | logging.LoggerAdapter[logging.Logger]:
    """Return the logger of the current flow run, or this module's in a thread without one."""
    with contextlib.suppress(MissingContextError):
        return get_run_logger()
    return logging.getLogger(__name__)


def _make_call(attempt: Callable[[], Result]) -> tuple[Result | None, bool]:
    """Return the result of a call, and True if it reached the server."""
    started_at = time.monotonic()
    with _server.lock:
        if _server.is_away:  # the other threads go on meanwhile
            _server.next_call = started_at + _MAX_PAUSE_SECONDS
    reason = f"no answer in {_ANSWER_SECONDS:g} s"
    try:
        if server_answers():
            result = attempt()
            _set_state(is_away=False)
            return result, True
    except (httpx.HTTPError, PrefectException) as error:
        is_refusal = isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500
        if is_refusal or not isinstance(error, httpx.HTTPError):
            run_logger().warning("Prefect server refused a call (%s); the stage goes on", error)
            _set_state(is_away=False)
            return None, True
        reason = str(error) or type(error).__name__
    _set_state(is_away=True, reason=reason, call_seconds=time.monotonic() - started_at)
    return None, False


def _set_state(*, is_away: bool, reason: str = "", call_seconds: float = 0.0) -> None:
    """Record whether the server is away, and log once that it went away or came back."""
    pause = _PAUSE_PER_SECOND * call_seconds
    pause = max(_MIN_PAUSE_SECONDS, min(pause, _MAX_PAUSE_SECONDS))
    with _server.lock:
        was_away, _server.is_away = _server.is_away, is_away
        _server.next_call = time.monotonic() + pause if is_away else 0.0
    if is_away and not was_away:
        run_logger().warning("Prefect server is away (%s); the stage goes on", reason)
    elif was_away and not is_away:
        run_logger().info("Prefect server is back")
        _tell_of_recent_task_runs()


def _make_waiting_calls() -> None:
    with _server.lock:
        waiting_calls = dict(_server.waiting_calls)
        _server.waiting_calls.clear()
    while waiting_calls:
        name, attempt = next(iter(waiting_calls.items()))
        _, reached_server = _make_call(attempt)
        if not reached_server:
            with _server.lock:
                _server.waiting_calls = waiting_calls | _server.waiting_calls
            return
        del waiting_calls[name]
