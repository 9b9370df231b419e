"""The servers of one judge: which one gets a request, and what happens while one is away.

A request goes to the server that its session prefers, so that prompts with the same beginning meet
one prefix cache, unless that server has more open requests than its share (consistent hashing with
bounded loads, Mirrokni and others 2018). If a server takes no connection, breaks one, or is silent
at ``/health``, its requests go to the others; it is asked again until it is back. With one address
nothing is asked beside the requests themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import wait
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from encore.core.errors import EncoreError, JudgeUnavailableError
from encore.judges.http_protocol import ServerAwayError
from encore.judges.http_server import HttpServer
from encore.judges.server_options import ServerOptions

logger = logging.getLogger(__name__)

#: Pause between two questions to a server that is away: half of the time that it is away, within
#: these seconds.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 60.0
#: Time between two reports of progress, and the longest delay of an interruption.
_PROGRESS_SECONDS = 0.1
#: Servers that one request may lose before its prompts are suspected.
_MAX_SERVERS_PER_REQUEST = 3
#: A server may have this many times its share of the open requests, and one more.
_LOAD_FACTOR = 1.5
#: Time between two looks at the servers, the limit of one, and looks without an answer after which
#: a server counts as away.
_LOOK_SECONDS, _LOOK_LIMIT_SECONDS, _MAX_SILENT_LOOKS = 5.0, 10.0, 3
_Result = TypeVar("_Result")

#: Whether a server gets requests: ``new`` until it was checked, ``refused`` if it has another
#: model, ``gone`` if it was taken from the list.
_State = Literal["new", "up", "away", "refused", "gone"]


@dataclass(slots=True, eq=False)
class _Member:
    """One server, and the requests that it has at work.

    Attributes:
        client: Client of the server.
        state: Whether it gets requests.
        open_requests: Its requests at work. They are cancelled, and sent to another server, when it
            is away.
        num_prompts: Prompts that it answered.
        up_since: Monotonic time since it gets requests; 0 before that.
        num_silent_looks: Looks in a row that it did not answer.
        reason: Why it is not ``up``.
        num_losses: Times in a row that it was away, without an answered prompt between.
        look_after: Monotonic time before which it is not asked whether it is back.
    """

    client: HttpServer
    state: _State = "new"
    open_requests: set[asyncio.Task[Any]] = field(default_factory=set)
    num_prompts: int = 0
    up_since: float = 0.0
    num_silent_looks: int = 0
    reason: str = ""
    num_losses: int = 0
    look_after: float = 0.0


class HttpServers:
    """The servers of a judge, with the thread that runs their requests.

    Attributes:
        request_limit: Semaphore that bounds the number of open requests of all callers.
    """

    def __init__(
        self,
        model: str,
        how: ServerOptions,
        *,
        num_servers: int,
        may_change: bool,
        check: Callable[[HttpServer], Awaitable[None]],
    ) -> None:
        """Start the thread. Nothing is sent.

        Args:
            model: Name of the judge.
            how: Options of the servers with their addresses.
            num_servers: Number of servers; fewer may be there at first if they change.
            may_change: True if servers are replaced later.
            check: Asks a server for its model. It raises `ServerAwayError`, or another error if the
                server cannot be used.
        """
        self._model, self._how = model, how
        self._check = check
        self._has_one = num_servers == 1 and not may_change
        self._members = [_Member(self._client_of(url)) for url in how.base_urls]
        self.request_limit = asyncio.Semaphore(how.concurrency * num_servers)
        self._wait_lock = asyncio.Lock()
        self._waited_seconds = 0.0
        self._away_since: float | None = None
        self._watch: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(
        self, work: Coroutine[Any, Any, _Result], *, on_tick: Callable[[], None] = lambda: None
    ) -> _Result:
        """Run a coroutine in the thread and return its result.

        The calling thread waits and can be interrupted.

        Args:
            work: Coroutine to run, which may send many requests.
            on_tick: Called every tenth of a second, and at the end. It may raise to interrupt.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while wait([future], timeout=_PROGRESS_SECONDS).not_done:
                on_tick()
            on_tick()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel open requests, close the connections and end the thread."""
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop.close()

    def rows(self) -> list[dict[str, object]]:
        """Return a row per server for people: address, state, prompts, speed, requests at work."""
        now = time.monotonic()
        return [
            {
                "address": member.client.url,
                "state": member.state,
                "prompts": member.num_prompts,
                "prompts/s": member.num_prompts / (now - member.up_since)
                if member.up_since
                else 0.0,
                "requests at work": len(member.open_requests),
            }
            for member in [*self._members]
        ]

    # --- which servers there are ------------------------------------------------------------------

    async def open(self) -> None:
        """Check every server. Those that are away are asked again later.

        Raises:
            ServerAwayError: All are away; the error of the first.
            EncoreError: One has another model, or cannot be used.
        """
        first, *followers = self._members
        errors = [  # each is compared with the first
            await self._absence(first),
            *await asyncio.gather(*map(self._absence, followers)),
        ]
        if errors[0] is not None and all(errors):
            raise errors[0]
        for member, error in zip(self._members, errors, strict=True):
            if error is None:
                self._set_up(member)
            else:
                self._set_away(member, error)
        if not self._has_one:
            self._watch = asyncio.create_task(self._look_again_and_again())

    async def _absence(self, member: _Member) -> ServerAwayError | None:
        """Check a server; return the error if it is away."""
        try:
            await self._check(member.client)
        except ServerAwayError as error:
            return error
        return None

    async def replace(self, urls: Collection[str]) -> None:
        """Have servers at these addresses and no others.

        A new one gets requests once it was checked; if it cannot be asked, the next call tries it
        again. The requests of a dropped one go to the others.
        """
        for member in [member for member in self._members if member.client.url not in urls]:
            self._members.remove(member)
            self._cancel_requests(member, "gone")
            await member.client.close()
        for url in {*urls} - {member.client.url for member in self._members}:
            member = _Member(self._client_of(url))
            try:
                async with asyncio.timeout(_LOOK_LIMIT_SECONDS):
                    await self._check(member.client)
            except (TimeoutError, EncoreError) as error:
                logger.info("%s cannot be asked yet: %s", url, error)
                await member.client.close()
            else:
                self._members.append(member)
                self._set_up(member)

    def _client_of(self, url: str) -> HttpServer:
        return HttpServer(self._model, self._how, url, is_only_one=self._has_one)

    def _set_up(self, member: _Member) -> None:
        if member.state == "away":
            logger.warning("%s is back", member.client.url)
        member.state, member.num_silent_looks = "up", 0
        member.up_since = member.up_since or time.monotonic()

    def _set_away(self, member: _Member, error: object) -> None:
        if member.state not in ("new", "up"):
            return
        logger.warning("%s is left out until it is back: %s", member.client.url, error)
        self._cancel_requests(member, "away")
        member.reason = str(error)
        # One that is back at once and fails again costs its requests each time.
        pause = _LOOK_SECONDS * (2**member.num_losses - 1)
        member.look_after = time.monotonic() + min(pause, _MAX_PAUSE_SECONDS)
        member.num_losses += 1

    def _cancel_requests(self, member: _Member, state: _State) -> None:
        """Give a server another state, and its open requests to the others."""
        member.state = state
        for request in member.open_requests:
            request.cancel()

    async def _look_again_and_again(self) -> None:
        """Look whether servers are there, until this task is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await asyncio.gather(*(self._look_at(member) for member in self._members))

    async def _look_at(self, member: _Member) -> None:
        """Find out whether a server is silent, or back."""
        is_idle = member.state == "up" and not member.open_requests
        if member.state == "refused" or is_idle or time.monotonic() < member.look_after:
            return
        try:
            async with asyncio.timeout(_LOOK_LIMIT_SECONDS):
                if member.state == "up":
                    await member.client.ask_health()
                else:
                    await self._check(member.client)
        except (TimeoutError, ServerAwayError) as error:
            member.num_silent_looks += 1
            if member.num_silent_looks >= _MAX_SILENT_LOOKS:
                self._set_away(member, str(error) or "it is silent")
        except EncoreError as error:  # it came back with another model
            logger.warning("%s is left out: %s", member.client.url, error)
            self._cancel_requests(member, "refused")
        else:
            if member.state != "gone":
                self._set_up(member)

    # --- requests ---------------------------------------------------------------------------------

    async def request(
        self,
        path: str,
        body: dict[str, Any] | None,
        read: Callable[[Any], _Result],
        *,
        session: str = "",
        num_prompts: int = 1,
    ) -> _Result:
        """Send a request to a server and return what ``read`` makes of the answer.

        Args:
            path: Path of the request.
            body: Body of a POST request; None sends a GET request.
            read: Function that reads the answer (see `HttpServer.request`).
            session: Name by which a server, and a router behind it, is chosen; empty for none.
            num_prompts: Prompts in the request.

        Raises:
            ServerAwayError: No server is there.
            EncoreError: As for `HttpServer.request`.
        """
        away: ServerAwayError | None = None
        for _ in range(_MAX_SERVERS_PER_REQUEST):
            member = self._choose(session)
            if member is None:
                break
            try:
                work = member.client.request(path, body, read, session=session)
                result = await self._send(member, work)
            except ServerAwayError as error:
                if self._has_one:
                    raise
                self._set_away(member, error)
                away = error
            else:
                member.num_prompts += num_prompts
                member.num_losses = 0
                return result
        if away is not None and any(member.state == "up" for member in self._members):
            raise away  # the request may be what ends servers
        reasons = [f"{member.client.url}: {member.reason}" for member in self._members]
        raise ServerAwayError(
            f"judge {self._model!r}: none of its servers is there ({'; '.join(reasons)})"
        )

    async def _send(self, member: _Member, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Send a request to one server.

        Raises:
            ServerAwayError: Also if the server was found to be away meanwhile.
        """
        request = asyncio.create_task(work)
        member.open_requests.add(request)
        try:
            return await request
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # by the caller, not by `_cancel_requests`
                raise
            raise ServerAwayError(member.reason or f"{member.client.url} was dropped") from None
        finally:
            request.cancel()
            member.open_requests.discard(request)

    def _choose(self, session: str) -> _Member | None:
        """Return the server for a session; None if none is there."""
        if self._has_one:
            return self._members[0]
        up = [member for member in self._members if member.state == "up"]
        num_open = 1 + sum(len(member.open_requests) for member in up)
        limit = math.ceil(_LOAD_FACTOR * num_open / max(1, len(up)))
        free = [member for member in up if len(member.open_requests) < limit]
        return max(free, key=lambda member: _preference(session, member.client.url), default=None)

    # --- waiting ----------------------------------------------------------------------------------

    @property
    def wait_seconds(self) -> float:
        """Time of all waits while no server was there, the present one included."""
        away_since = self._away_since
        return self._waited_seconds + (time.monotonic() - away_since if away_since else 0.0)

    async def wait_until_back(self, ask: Callable[[], Awaitable[object]]) -> bool:
        """Wait until a server answers a question. Return False if one did so at once.

        Of several requests that failed, one asks.

        Raises:
            JudgeUnavailableError: None was there for longer than ``wait_for_server``.
        """
        waited_before = self._waited_seconds
        async with self._wait_lock:
            if self._waited_seconds == waited_before:  # no other request has waited
                await self.ask_until_back(ask)
        return self._waited_seconds > waited_before

    async def ask_until_back(self, ask: Callable[[], Awaitable[_Result]]) -> _Result:
        """Return the answer to a question; ask again while no server is there.

        Raises:
            ServerAwayError: No server is there, and none is waited for.
            JudgeUnavailableError: None was there for longer than ``wait_for_server``.
        """
        limit_seconds = 60 * self._how.wait_for_server
        next_message_seconds = 0.0
        try:
            while True:
                try:
                    return await ask()
                except ServerAwayError as error:
                    if not limit_seconds:
                        raise
                    now = time.monotonic()
                    self._away_since = self._away_since or now
                    away_seconds = now - self._away_since
                    if away_seconds >= limit_seconds:
                        raise JudgeUnavailableError(
                            f"{error}; waited {self._how.wait_for_server:g} minutes "
                            "(--wait-for-server); the same command goes on when it is back"
                        ) from None
                    if away_seconds >= next_message_seconds:
                        logger.warning("waiting for the server: %s", error)
                        next_message_seconds = max(60.0, 2 * away_seconds)
                pause = min(max(_MIN_PAUSE_SECONDS, away_seconds / 2), _MAX_PAUSE_SECONDS)
                await asyncio.sleep(min(pause, limit_seconds - away_seconds))
        finally:
            if self._away_since is not None:
                self._waited_seconds += time.monotonic() - self._away_since
                self._away_since = None

    async def _stop(self) -> None:
        """Cancel open requests and close the connections."""
        open_tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)
        for member in self._members:
            with contextlib.suppress(EncoreError):
                await member.client.close()


def _preference(session: str, url: str) -> bytes:
    """Return how much a session prefers a server: the largest digest wins (rendezvous hashing)."""
    return hashlib.blake2b(f"{session}\n{url}".encode(), digest_size=8).digest()


async def in_tasks(work: Callable[[], Coroutine[Any, Any, None]], num_tasks: int) -> None:
    """Do some work in several tasks until each has ended, or one fails."""
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(num_tasks):
                group.create_task(work())
    except BaseExceptionGroup as errors:  # the first error cancelled the other tasks
        raise errors.exceptions[0] from None
