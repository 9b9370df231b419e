"""Client of `encore serve`: sends texts, tries again while that helps, and else raises.

All requests of a client run in one event loop of a thread of its own. So the same client serves
synchronous code, any number of event loops, and many requests at one time on few connections.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import math
import os
import random
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from encore.core.errors import EncoreError, InputError

if TYPE_CHECKING:
    import httpcore

#: Variable of the environment with the server's URL, for trainers that call a function by name.
URL_VARIABLE = "ENCORE_REWARD_URL"
#: Seconds until a reward is given up. A server whose queue is full keeps a request for 150.
DEFAULT_MAX_SECONDS = 300.0
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.25, 10.0
#: A server takes 4,096 connections; a training has several processes.
_MAX_CONNECTIONS = 64
_CONNECT_SECONDS, _IDLE_SECONDS = 10.0, 5.0
_OK = 200
#: A request that was too slow, a full queue. The server's own errors (5xx) are tried again too.
_TRIED_AGAIN = (408, 429)
_SERVER_ERRORS = range(500, 600)


class RewardUnavailableError(EncoreError):
    """A reward could not be had within the time limit. There is no reward to train on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model that a server answers with (`GET /model`).

    Attributes:
        digest: Digest of the files of the model.
        weights: Weight of each rule, by rule id, in head order.
        reward_mean: Mean that is added to a reward to put it on the scale of the ratings.
        max_texts: Largest number of texts in one request.
        max_bytes: Largest size of a request's body.
    """

    digest: str
    weights: Mapping[str, float]
    reward_mean: float
    max_texts: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReward:
    """The reward of one text.

    Attributes:
        reward: Weighted sum of the centred scores of the rules in the reward.
        scores: Centred score of each rule, by rule id, as `encore score` writes them.
        contributions: What each rule adds to the reward; 0 for a rule that is not in it.
        left_out: Ids of rules with a weight that the server left out of this reward.
    """

    reward: float
    scores: Mapping[str, float]
    contributions: Mapping[str, float]
    left_out: frozenset[str]


class RewardClient:
    """Client of one reward server.

    Args:
        url: Address of `encore serve`, e.g. ``http://127.0.0.1:5000``.
        max_seconds: Time limit of one call, with all its attempts.
        headers: Headers of each request, e.g. for a proxy that asks for a password.
    """

    def __init__(
        self,
        url: str,
        *,
        max_seconds: float = DEFAULT_MAX_SECONDS,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InputError(f"URL of the reward server: {url!r}; expected http://HOST:PORT")
        self.url = url.rstrip("/")
        self._max_seconds = max_seconds
        self._headers = dict(headers or {})
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pools: list[httpcore.AsyncConnectionPool] = []
        self._free_pools: asyncio.LifoQueue[httpcore.AsyncConnectionPool] = asyncio.LifoQueue()
        self._process_id = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how a copy in another process is made: with connections of its own."""
        options = {"max_seconds": self._max_seconds, "headers": self._headers}
        return functools.partial(RewardClient, **options), (self.url,)  # type: ignore[arg-type]

    def __enter__(self) -> RewardClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # --- calls ------------------------------------------------------------------------------------

    @functools.cached_property
    def model(self) -> ServedModel:
        """The server's model, as it was when it was first asked for.

        Raises:
            RewardUnavailableError: The server did not answer within the time limit.
            InputError: The address is not that of a reward server.
        """
        fields = self._run(self._send("GET", "/model")).result()
        try:
            return ServedModel(
                digest=fields["digest"],
                weights={rule["rule_id"]: rule["weight"] for rule in fields["rules"]},
                reward_mean=fields["reward_mean"],
                max_texts=fields["limits"]["max_queries"],
                max_bytes=fields["limits"]["max_request_bytes"],
            )
        except (KeyError, TypeError) as error:
            raise InputError(f"{self.url}/model: not the answer of `encore serve`") from error

    def submit(self, conversations: Sequence[str]) -> Future[list[TextReward]]:
        """Send conversations, and return at once; the future will hold their rewards, in order.

        The future raises `RewardUnavailableError` if there is no reward within the time limit, and
        `InputError` if the server refuses a text or has another model by now.

        Args:
            conversations: JSON of `encore.rewards.conversations.conversation_json`.
        """
        return self._run(self._rewards(self.model, conversations))

    def score(self, conversations: Sequence[str]) -> list[TextReward]:
        """Return the rewards of conversations. The errors are those of `submit`."""
        return self.submit(conversations).result()

    async def score_async(self, conversations: Sequence[str]) -> list[TextReward]:
        """Return the rewards of conversations in any event loop; errors as those of `submit`."""
        if "model" not in self.__dict__:  # the first call waits for an answer
            await asyncio.to_thread(lambda: self.model)
        return await asyncio.wrap_future(self.submit(conversations))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a body of another shape than that of `POST /score`, and return the answer's JSON."""
        return self._run(self._send("POST", path, json.dumps(body).encode())).result()

    def close(self) -> None:
        """Cancel open requests, close the connections, end the thread.

        A later call opens them again.
        """
        with self._lock:
            loop, thread, pools, self._loop = self._loop, self._thread, self._pools, None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(_end_requests(pools), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    # --- requests ---------------------------------------------------------------------------------

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine in the client's own event loop, which the first call starts."""
        with self._lock:
            if self._loop is None or self._process_id != os.getpid():  # no thread survives a fork
                import httpcore
                import httpx

                self._loop, self._process_id = asyncio.new_event_loop(), os.getpid()
                # The layer below httpx, whose client takes a millisecond a request. A pool searches
                # its connections and waiting requests for each answer, so each has one of both.
                ssl_context = httpx.create_ssl_context()
                self._pools = [
                    httpcore.AsyncConnectionPool(
                        ssl_context, max_connections=1, keepalive_expiry=_IDLE_SECONDS
                    )
                    for _ in range(_MAX_CONNECTIONS)
                ]
                self._free_pools = asyncio.LifoQueue()  # the latest one has an open connection
                for pool in self._pools:
                    self._free_pools.put_nowait(pool)
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="encore-rewards", daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _rewards(self, model: ServedModel, conversations: Sequence[str]) -> list[TextReward]:
        bodies = _bodies(conversations, model=model)
        answers = await asyncio.gather(
            *(self._send("POST", "/score", body.encode()) for body in bodies)
        )
        results: list[Any] = []
        for answer in answers:
            if answer.get("digest") != model.digest:
                raise InputError(
                    f"{self.url}: the server has another model than at the beginning of this "
                    f"training (digest {answer.get('digest')}, was {model.digest}); start it with "
                    "the first model, or begin a new training"
                )
            results += answer["results"]
        if len(results) != len(conversations):
            raise InputError(f"{len(results)} rewards for {len(conversations)} texts")
        return [_text_reward(*numbered, model=model) for numbered in enumerate(results)]

    async def _send(self, method: str, path: str, content: bytes | None = None) -> Any:
        """Send one request, again and again while that may help, and return its answer's JSON."""
        import httpcore

        errors = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)
        headers = [*({"content-type": "application/json"} | self._headers).items()]
        problem = "none yet"
        try:
            async with asyncio.timeout(self._max_seconds):
                for attempt in itertools.count():
                    seconds: float | None = None
                    try:
                        pool = await self._free_pools.get()
                        try:
                            response = await pool.request(
                                method,
                                f"{self.url}{path}",
                                headers=headers,
                                content=content,
                                extensions={"timeout": {"connect": _CONNECT_SECONDS}},
                            )
                        finally:
                            self._free_pools.put_nowait(pool)
                    except errors as error:
                        problem = f"{type(error).__name__}: {error}"
                    else:
                        if response.status == _OK:
                            return json.loads(response.content)
                        text = response.content.decode(errors="replace")
                        problem = f"status {response.status}: {text[:500]}"
                        if response.status not in (*_TRIED_AGAIN, *_SERVER_ERRORS):
                            break
                        seconds = _retry_after(response.headers)
                    await asyncio.sleep(_backoff(attempt) if seconds is None else seconds)
        except TimeoutError:
            raise RewardUnavailableError(
                f"{self.url}{path}: no answer within {self._max_seconds:g} s (last: {problem}); "
                "see that `encore serve` runs at this address"
            ) from None
        except ValueError as error:
            raise InputError(f"{self.url}{path}: an answer that is not JSON: {error}") from error
        raise InputError(f"{self.url}{path}: {problem}")


async def _end_requests(pools: Sequence[httpcore.AsyncConnectionPool]) -> None:
    """Cancel the requests of this event loop, wait for their end, and close the connections."""
    requests = asyncio.all_tasks() - {asyncio.current_task()}
    for request in requests:
        request.cancel()
    await asyncio.gather(*requests, return_exceptions=True)
    for pool in pools:
        await pool.aclose()


def shared_client(url: str | None = None) -> RewardClient:
    """Return this process's client of a server, by default of the one in `URL_VARIABLE`.

    Raises:
        InputError: There is no URL.
    """
    url = url or os.environ.get(URL_VARIABLE)
    if not url:
        raise InputError(f"no reward server: set {URL_VARIABLE}=http://HOST:PORT")
    return _client_of(url)


@functools.cache
def _client_of(url: str) -> RewardClient:
    return RewardClient(url)


def _backoff(attempt: int) -> float:
    """Return the seconds to wait after a failed attempt; processes do not come back together."""
    longest = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2.0 ** min(attempt, 10))
    return longest * random.uniform(0.5, 1.0)


def _retry_after(headers: Sequence[tuple[bytes, bytes]]) -> float | None:
    """Return the seconds that a server asks for; None for a date or no header."""
    values = [value for name, value in headers if name.lower() == b"retry-after"]
    return float(values[0]) if values and values[0].isdigit() else None


def _bodies(conversations: Sequence[str], *, model: ServedModel) -> Iterator[str]:
    """Yield bodies of `POST /score` within the server's limits."""
    part: list[str] = []
    num_bytes = overhead = len('{"conversations": []}')
    for conversation in conversations:  # ASCII: a character is a byte
        if part and (
            len(part) == model.max_texts or num_bytes + len(conversation) + 2 > model.max_bytes
        ):
            yield f'{{"conversations": [{", ".join(part)}]}}'
            part, num_bytes = [], overhead
        part.append(conversation)
        num_bytes += len(conversation) + 2
    if part:
        yield f'{{"conversations": [{", ".join(part)}]}}'


def _text_reward(index: int, result: Any, *, model: ServedModel) -> TextReward:
    """Return the reward of one entry of an answer.

    Raises:
        InputError: The text was refused, the entry is not one of this model, or a number in it is
            infinite or no number.
    """
    try:
        rules = result["rules"]
        is_in_reward = {rule["rule_id"]: rule.get("is_in_reward", True) for rule in rules}
        reward = TextReward(
            reward=result["reward"],
            scores={rule["rule_id"]: rule["centred_score"] for rule in rules},
            contributions={
                rule["rule_id"]: rule["contribution"] if is_in_reward[rule["rule_id"]] else 0.0
                for rule in rules
            },
            left_out=frozenset(
                rule_id
                for rule_id, is_in in is_in_reward.items()
                if not is_in and model.weights[rule_id] != 0
            ),
        )
        numbers = (reward.reward, *reward.scores.values(), *reward.contributions.values())
        is_whole = is_in_reward.keys() == model.weights.keys() and all(map(math.isfinite, numbers))
    except (KeyError, TypeError, OverflowError):  # an integer may exceed all numbers
        is_whole = False
    if not is_whole:
        raise InputError(f"text {index} (counted from 0) has no reward: {str(result)[:300]}")
    return reward
