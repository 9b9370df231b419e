"""The judge on a server that speaks OpenAI's protocol, through the `openai` client."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from encore.core.chat_tokenizer import FROZEN_DATE, load_tokenizer
from encore.core.errors import EncoreError, JudgeUnavailableError
from encore.core.extras import install_command
from encore.core.model_files import ModelFinder
from encore.judges import http_protocol as protocol
from encore.judges.base import (
    SERVER_ERROR,
    Decoding,
    JudgeIdentity,
    ProgressHook,
    Prompt,
    Reply,
    ReplyHook,
    ignore_reply,
)
from encore.judges.http_protocol import (
    GatewayError,
    PromptFailedError,
    ServerAwayError,
    UnreadableAnswerError,
    first_words,
)
from encore.judges.judge_options import JudgeConfig

try:
    import httpx2
    import openai
except ImportError as missing:
    raise JudgeUnavailableError(
        f"a judge over HTTP needs the package openai ({missing}): {install_command('openai')}"
    ) from missing

logger = logging.getLogger(__name__)

#: Retries of a request that failed for a passing reason. The client waits 0.5 to 8 s between them,
#: or as long as the server says in `Retry-After`.
MAX_RETRIES = 5
#: Longest answer of a server, decompressed. 64 replies of 512 tokens have about 0.2 MB.
MAX_ANSWER_BYTES = 8 * 2**20
#: Pause between two questions to a server that is away: half of the time that it is away, within
#: these seconds.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 60.0
#: Times that one request waits for the server: its prompt may be what ends the server.
_MAX_WAITS = 3
#: vLLM answers requests of ten or more prompts several times faster than requests of one prompt.
_PROMPTS_PER_REQUEST = 64
#: Time between two reports of progress, and the longest delay of an interruption.
_PROGRESS_SECONDS = 0.1
#: Shorter keys are placeholders such as EMPTY, which may occur in normal texts.
_MIN_KEY_LENGTH = 8
#: Fields of a request that change its cost, its speed or its record at the service but no reply.
_FIELDS_WITHOUT_EFFECT = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier"),
        *("priority", "cache_salt"),
    }
)
#: Prompts that may fail even if fewer are answered.
_MAX_FAILED = 10
#: Statuses below 500 that may be the fault of one prompt.
_PROMPT_STATUSES = (400, 413, 422)
#: Statuses of a gateway whose server is away.
_AWAY_STATUSES = (502, 503, 504)
_PROBE = "Answer with the number 0.5 and nothing else."
#: A server that ignores unknown options would not answer with these.
_PROBE_LABELS = ("xq", "qx")
_TOKENIZER = ModelFinder(name="tokenizer", error=JudgeUnavailableError)
_Result = TypeVar("_Result")


class HttpJudge:
    """Judge (`encore.judges.base.Judge`) on a server.

    With a tokenizer the server must be vLLM, and gets token ids. Without a tokenizer any server
    does, and gets the user message as a chat.
    """

    #: The server computes on another machine, so two shards are rated at the same time.
    is_on_cpu = False
    is_remote = True

    def __init__(self, config: JudgeConfig) -> None:
        """Load the tokenizer; nothing is sent to the server yet."""
        self.config = config
        self.tokenizer = None
        if config.tokenizer is not None:
            self.tokenizer = load_tokenizer(_TOKENIZER.find(config.tokenizer, needs_weights=False))
        self._lock = threading.RLock()
        self._server: _Server | None = None
        #: The server's list of models; empty if it has none.
        self._listed_models: dict[str, dict[str, Any]] = {}
        #: Name of the model in the first answer.
        self._answering_model: str | None = None

    @property
    def identity(self) -> JudgeIdentity:
        """Part of the run key: the facts that are known of a model on a server.

        Without a revision the host identifies the model, because port and path change when a
        server is restarted. Two models of the same name on one host need a `revision`.
        """
        config, tokenizer = self.config, self.tokenizer
        context = config.max_model_len or 0
        if tokenizer is not None and not context:
            context = self._max_model_len()
        is_path = config.model.startswith(("/", ".", "~"))
        return JudgeIdentity(
            backend="http",
            name=config.model.rstrip("/").rpartition("/")[2] if is_path else config.model,
            revision=config.revision or host_of(config),
            dtype="as served",
            chat_template_sha256="" if tokenizer is None else tokenizer.template_sha256,
            frozen_date="" if tokenizer is None else FROZEN_DATE,
            max_model_len=context,
            engine_args={
                "api": "chat" if tokenizer is None else "completions",
                **self._keyed_fields,
            },
        )

    @property
    def wait_seconds(self) -> float:
        """Time that this judge has waited for its server while it was away."""
        return 0.0 if self._server is None else self._server.wait_seconds

    @property
    def _keyed_fields(self) -> dict[str, str]:
        """Part of the identity: the fields of requests that the user added or left out, if any.

        Headers are no part: they hold keys and accounts, which change while the model stays.
        """
        fields = self.config.request_fields
        added = {name: fields[name] for name in fields.keys() - _FIELDS_WITHOUT_EFFECT}
        omitted = sorted({*self.config.omit_fields} - _FIELDS_WITHOUT_EFFECT)
        keyed = {"request_fields": added, "omit_fields": omitted}
        return {name: json.dumps(value, sort_keys=True) for name, value in keyed.items() if value}

    def check(self, decoding: Decoding) -> None:
        """Send a test question, so that a wrong model, key or decoding is refused at once."""
        probe, kind = decoding, decoding.kind
        if kind == "choice":
            num_tokens = 16 * (decoding.num_scores or 1)
            probe = replace(decoding, labels=_PROBE_LABELS, max_reply_tokens=num_tokens)
        try:
            [reply] = self.reply([self._probe_prompt()], decoding=probe, on_progress=lambda _: None)
        except EncoreError as error:
            advice = f"; --decode text asks for less than {kind}" if kind != "text" else ""
            raise JudgeUnavailableError(f"{error}{advice}") from None
        pattern = probe.scores_pattern if probe.num_scores else "|".join(_PROBE_LABELS)
        text, pattern = ("".join(part.split()) for part in (reply.text, pattern))
        if kind == "choice" and not re.fullmatch(pattern, text):
            raise self._refusal(
                f"ignores the choice of answers that it is given, which vLLM calls "
                f"structured_outputs, and says {reply.text[:40]!r}; give --decode text"
            )

    def start(self) -> None:
        """Connect to the server and check that it has the model.

        Raises:
            JudgeUnavailableError: It has no such model, or it does not answer.
        """
        with self._lock:
            if self._server is not None:
                return
            logger.warning(
                "judge %s: texts are sent to %s", self.config.model, host_of(self.config)
            )
            server = _Server(self.config)
            try:
                list_models = partial(server.request, protocol.MODELS, None, protocol.read_models)
                self._listed_models = server.run(server.ask_until_back(list_models))
                if self._listed_models and self.config.model not in self._listed_models:
                    names = server.redacted(", ".join(sorted(self._listed_models)))
                    raise self._refusal(f"has no such model; it has {names}: give one as --judge")
            except EncoreError as error:
                server.close()
                raise JudgeUnavailableError(str(error)) from None
            self._server = server

    def reply(
        self,
        prompts: Sequence[Prompt],
        *,
        decoding: Decoding,
        on_progress: ProgressHook,
        on_reply: ReplyHook = ignore_reply,
        sessions: Sequence[str] = (),
        num_answered: int | None = None,
    ) -> list[Reply]:
        """Return the replies in prompt order. An exception cancels the open requests.

        With ``num_answered``, a prompt is set aside if it fails twice and the server answers a test
        question after each failure. That holds for errors that can be a prompt's fault, and while
        at most 10 prompts fail, or no more than others are answered or under way. So no prompt is
        set aside because the server is away, or because of a mistake that every prompt meets.
        """
        self.start()
        assert self._server is not None
        server, replies = self._server, dict[int, Reply]()
        new_replies = deque[tuple[int, Reply]]()  # filled in the server's thread
        session_of = sessions or [""] * len(prompts)
        requests = self._prompts_of_requests(session_of)
        counts = _PromptCounts(num_answered)

        async def send_requests() -> None:
            """Send one request after the other, until the tasks together have sent all."""
            for indices in requests:
                batch, session = [prompts[index] for index in indices], session_of[indices[0]]
                async with server.request_limit:
                    counts.num_sent += len(batch)
                    batch_replies = await self._reply_or_set_aside(
                        server, batch, session, decoding, counts
                    )
                batch_items = [*zip(indices, batch_replies, strict=True)]
                replies.update(batch_items)
                new_replies.extend(batch_items)

        async def send_in_tasks() -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(self.config.concurrency):
                        group.create_task(send_requests())
            except BaseExceptionGroup as errors:  # the first error cancelled the other tasks
                raise errors.exceptions[0] from None

        def pass_replies_on() -> None:
            while new_replies:
                on_reply(*new_replies.popleft())

        def report() -> None:
            pass_replies_on()
            on_progress(len(replies))

        on_progress(0)
        try:
            server.run(send_in_tasks(), on_tick=report)
        finally:
            pass_replies_on()
        return [replies[index] for index in range(len(prompts))]

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.close()

    def _probe_prompt(self) -> Prompt:
        """Return the prompt of a test question."""
        return _PROBE if self.tokenizer is None else self.tokenizer.encode([_PROBE])[0]

    def _max_model_len(self) -> int:
        """Return the context length that the server's list of models has for the judge."""
        if not self._listed_models:  # the list is kept when the connection is closed
            self.start()
        context = self._listed_models.get(self.config.model, {}).get("max_model_len")
        if not isinstance(context, int):
            raise self._refusal("does not say how long its context is; give --max-model-len")
        return context

    def _refusal(self, problem: str) -> JudgeUnavailableError:
        """Return the error of a server that cannot be used."""
        server = f"judge {self.config.model!r}: the server at {host_of(self.config)}"
        return JudgeUnavailableError(f"{server} {problem}")

    def _prompts_of_requests(self, sessions: Sequence[str]) -> Iterator[list[int]]:
        """Yield the indices of each request's prompts.

        A chat has a request of its own. Neighbouring prompts of token ids with the same session
        share a request.
        """
        limit = 1 if self.tokenizer is None else _PROMPTS_PER_REQUEST
        for _, indices in itertools.groupby(range(len(sessions)), key=sessions.__getitem__):
            while batch := list(itertools.islice(indices, limit)):
                yield batch

    async def _reply_or_set_aside(
        self,
        server: _Server,
        prompts: Sequence[Prompt],
        session: str,
        decoding: Decoding,
        counts: _PromptCounts,
    ) -> list[Reply]:
        """Return the replies to the prompts of one request; set a prompt aside that fails twice."""
        problem = ""
        for is_second in (False, True):
            try:
                replies = await self._reply_when_back(server, prompts, session, decoding)
            except PromptFailedError as error:
                if counts.num_answered is not None and len(prompts) > 1:
                    singles = [
                        await self._reply_or_set_aside(server, [prompt], session, decoding, counts)
                        for prompt in prompts  # one of them may have failed the others
                    ]
                    return [reply for [reply] in singles]
                counts.num_failed += not is_second
                if not counts.allow_failures:
                    raise
                await self._reply_to_batch(server, [self._probe_prompt()], "", decoding)
                problem = str(error)
            else:
                counts.num_failed -= is_second
                return replies
        logger.info("a prompt is set aside: %s", problem)
        return [Reply(text=problem, is_complete=False, null_reason=SERVER_ERROR)]

    async def _reply_when_back(
        self, server: _Server, prompts: Sequence[Prompt], session: str, decoding: Decoding
    ) -> list[Reply]:
        """Return the replies to the prompts of one request; wait while the server is away.

        It is away while it does not answer a test question. If it answers that at once, the prompts
        are the reason of the error.
        """
        probe = partial(self._reply_to_batch, server, [self._probe_prompt()], "", decoding)
        for _ in range(_MAX_WAITS):
            try:
                return await self._reply_to_batch(server, prompts, session, decoding)
            except ServerAwayError:
                if not self.config.wait_for_server or not await server.wait_until_back(probe):
                    raise
        return await self._reply_to_batch(server, prompts, session, decoding)

    async def _reply_to_batch(
        self, server: _Server, prompts: Sequence[Prompt], session: str, decoding: Decoding
    ) -> list[Reply]:
        """Send the prompts of one request, and return their replies."""
        model = self.config.model
        read: Callable[[Any], list[Reply]]
        if self.tokenizer is None:
            path, read = protocol.CHAT, partial(protocol.read_chat, decoding=decoding)
            body = protocol.chat_request(model, prompts[0], decoding)
        else:
            label_ids: Sequence[int] = ()
            if decoding.kind == "expected":
                label_ids = self.tokenizer.label_tokens(decoding.labels)
            options: dict[str, Any] = {"decoding": decoding, "label_ids": label_ids}
            path = protocol.COMPLETIONS
            body = protocol.completions_request(model, prompts, **options)
            read = partial(protocol.read_completions, num_prompts=len(prompts), **options)

        def check_and_read(answer: Any) -> list[Reply]:
            self._check_model(answer)
            return read(answer)

        body = self.config.request_body(body)
        replies = await server.request(path, body, check_and_read, session=session)
        return [replace(reply, text=server.redacted(reply.text)) for reply in replies]

    def _check_model(self, answer: Any) -> None:
        """Refuse answers of another model than the judge.

        A server may answer with a dated name of the model, as long as it stays the same.

        Raises:
            UnreadableAnswerError: The answer is of another model.
        """
        model = self.config.model
        name = answer.get("model") if isinstance(answer, dict) else None
        if name is None:
            return
        if self._answering_model is None and str(name).startswith(model):
            self._answering_model = name
        if name != self._answering_model:
            expected = self._answering_model or model
            raise UnreadableAnswerError(f"it is by another model, {name!r} instead of {expected!r}")


def host_of(config: JudgeConfig) -> str:
    """Return the host that texts are sent to."""
    return str(urlsplit(config.base_url or "").hostname)


class _BoundedClient(openai.DefaultAsyncHttpxClient):
    """HTTP client with limits of the time and the length of a whole answer.

    httpx limits the time of each read, so an answer of one byte a second would never end.
    """

    def __init__(self, limit_seconds: float) -> None:
        """Open no connection yet. The caller bounds their number."""
        limits = httpx2.Limits(
            max_connections=None,
            max_keepalive_connections=None,
            # The next request closes all that expired; if it is cancelled then, they stay open.
            keepalive_expiry=60,
        )
        # An address without a machine takes no connection, and is told from a slow answer.
        connect_seconds = min(20, limit_seconds / 2)
        timeout = httpx2.Timeout(limit_seconds, connect=connect_seconds)
        super().__init__(timeout=timeout, limits=limits)
        self._limit_seconds = limit_seconds

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request and read its answer to the end.

        Raises:
            httpx2.ReadTimeout: The answer was not complete in time.
            UnreadableAnswerError: The answer is too long.
        """
        content = bytearray()
        try:
            async with asyncio.timeout(self._limit_seconds):
                response = await super().send(request, **options | {"stream": True})
                try:
                    async for chunk in response.aiter_bytes():
                        content += chunk
                        if len(content) > MAX_ANSWER_BYTES:
                            size = f"{MAX_ANSWER_BYTES / 2**20:g} MiB"
                            raise UnreadableAnswerError(f"it is longer than {size}")
                finally:
                    await response.aclose()
        except TimeoutError:
            raise httpx2.ReadTimeout("the answer is not complete", request=request) from None
        headers = response.headers
        if response.is_error:
            text = content.decode(errors="replace")
            is_spent = protocol.is_quota_spent(response.status_code, text, headers=headers)
            if is_spent or response.status_code == 402:  # 402 with a time to wait passes
                headers["X-Should-Retry"] = str(not is_spent).lower()  # the client obeys it
        for name in ("Content-Encoding", "Content-Length", "Transfer-Encoding"):
            headers.pop(name, None)  # of the answer as it was sent
        return httpx2.Response(
            response.status_code, headers=headers, content=bytes(content), request=request
        )


def _header_value(name: str, source: str) -> str:
    """Return the value of a header from the environment variable of ``ENV:VARIABLE``.

    Raises:
        JudgeUnavailableError: The variable is not set, or its text cannot be sent.
    """
    variable = source.removeprefix("ENV:")
    value = os.environ.get(variable, "").strip()
    if not value or not (value.isascii() and value.isprintable()):
        problem = "is no line of ASCII text" if value else "is not set"
        raise JudgeUnavailableError(
            f"--header {name}: the environment variable {variable} {problem}; set it to the "
            "header's value"
        )
    return value


@dataclass(slots=True)
class _PromptCounts:
    """Numbers of prompts in one call of `HttpJudge.reply`.

    Attributes:
        num_answered: Prompts answered before the call; None if no prompt may be set aside.
        num_sent: Prompts sent so far.
        num_failed: Prompts that failed, and were not answered when they were sent again.
    """

    num_answered: int | None
    num_sent: int = 0
    num_failed: int = 0

    @property
    def allow_failures(self) -> bool:
        """Return True while prompts may be set aside: few fail, or at most half of all."""
        if self.num_answered is None:
            return False
        num_others = self.num_answered + self.num_sent - self.num_failed
        return self.num_failed <= max(_MAX_FAILED, num_others)


class _Server:
    """Client of a server, with the thread that runs its requests.

    Attributes:
        request_limit: Semaphore that bounds the number of open requests of all callers.
    """

    def __init__(self, config: JudgeConfig) -> None:
        """Start the thread. Nothing is sent."""
        for name in ("openai", "httpx", "httpcore", "httpx2", "httpcore2"):
            logging.getLogger(name).setLevel(logging.WARNING)  # lower levels log headers
        self._config = config
        self._key = os.environ.get(config.api_key_env, "").strip()
        headers = {name: _header_value(name, source) for name, source in config.headers.items()}
        self._secrets = sorted([self._key, *headers.values()], key=len, reverse=True)
        self._client = openai.AsyncOpenAI(
            api_key=self._key or "EMPTY",  # the client needs a key, a server without keys does not
            base_url=config.base_url,
            max_retries=MAX_RETRIES,
            default_headers=headers,
            http_client=_BoundedClient(config.request_timeout_seconds),
        )
        self.request_limit = asyncio.Semaphore(config.concurrency)
        self._wait_lock = asyncio.Lock()
        self._back_at = self._waited_seconds = 0.0
        self._away_since: float | None = None
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

    @property
    def wait_seconds(self) -> float:
        """Time of all waits for the server, the present one included."""
        away_since = self._away_since
        return self._waited_seconds + (time.monotonic() - away_since if away_since else 0.0)

    async def wait_until_back(self, ask: Callable[[], Awaitable[object]]) -> bool:
        """Wait until the server answers a question. Return False if it did so at once.

        Of several requests that failed, one asks.

        Raises:
            JudgeUnavailableError: The server was away for longer than ``wait_for_server``.
        """
        failed_at = time.monotonic()
        async with self._wait_lock:
            if self._back_at > failed_at:  # another request waited
                return True
            waited_before = self._waited_seconds
            await self.ask_until_back(ask)
            return self._waited_seconds > waited_before

    async def ask_until_back(self, ask: Callable[[], Awaitable[_Result]]) -> _Result:
        """Return the answer to a question; ask again while the server is away.

        Raises:
            ServerAwayError: The server is away, and is not waited for.
            JudgeUnavailableError: It was away for longer than ``wait_for_server``.
        """
        limit_seconds = 60 * self._config.wait_for_server
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
                            f"{error}; waited {self._config.wait_for_server:g} minutes "
                            "(--wait-for-server); the same command goes on when it is back"
                        ) from None
                    if away_seconds >= next_message_seconds:
                        logger.warning("waiting for the server: %s", error)
                        next_message_seconds = max(60.0, 2 * away_seconds)
                pause = min(max(_MIN_PAUSE_SECONDS, away_seconds / 2), _MAX_PAUSE_SECONDS)
                await asyncio.sleep(min(pause, limit_seconds - away_seconds))
        finally:
            if self._away_since is not None:
                self._back_at = time.monotonic()
                self._waited_seconds += self._back_at - self._away_since
                self._away_since = None

    async def request(
        self,
        path: str,
        body: dict[str, Any] | None,
        read: Callable[[Any], _Result],
        *,
        session: str = "",
    ) -> _Result:
        """Send a request and return what ``read`` makes of the answer.

        A request whose answer cannot be read is sent again.

        Args:
            path: Path of the request.
            body: Body of a POST request; None sends a GET request.
            read: Function that reads the answer, or raises ValueError or UnreadableAnswerError.
            session: Name by which a router chooses a server; empty for none.

        Raises:
            PromptFailedError: It did not answer, or none of its answers could be read; another
                prompt may be answered.
            EncoreError: The server is away, refuses the key, or lacks model or quota.
        """
        options: Any = {"follow_redirects": False}  # texts go to no other host
        options |= {"headers": {"X-Session-ID": session}} if session else {}
        arguments: dict[str, Any] = {"cast_to": object, "options": options}
        send = self._client.get if body is None else partial(self._client.post, body=body)
        for attempt in range(1 + MAX_RETRIES):
            await asyncio.sleep(min(0.5 * 2 ** (attempt - 1), 8) if attempt else 0)
            try:
                answer = await send(path, **arguments)
                if (quota_error := protocol.quota_error_within(answer)) is not None:
                    raise self._quota_error(200, quota_error)
                return read(answer)
            except openai.APIStatusError as error:
                status, response = error.status_code, error.response
                if protocol.is_quota_spent(status, response.text, headers=response.headers):
                    raise self._quota_error(status, response.text) from None
                answer = protocol.answer_of_error(path, error.status_code, error.body)
                if answer is None:
                    raise self._one_line_error(error) from None
                return read(answer)
            except openai.APIConnectionError as error:
                raise self._one_line_error(error) from None
            except (ValueError, UnreadableAnswerError) as error:  # not JSON, or not this protocol
                last_problem = self.redacted(str(error))
        raise UnreadableAnswerError(
            f"{self._label} does not answer as the OpenAI protocol says "
            f"({1 + MAX_RETRIES} attempts): {last_problem}; check --base-url (most servers need "
            "/v1 at its end), see the server's log"
        )

    def redacted(self, text: str) -> str:
        """Return a text of the server without the key and the values of headers."""
        for secret in self._secrets:
            if len(secret) >= _MIN_KEY_LENGTH:
                text = text.replace(secret, "[key]")
        return text

    async def _stop(self) -> None:
        """Cancel open requests and close the connections."""
        open_tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)
        await self._client.close()

    @property
    def _label(self) -> str:
        """Name of judge and host in messages."""
        return f"judge {self._config.model!r}: {host_of(self._config)}"

    def _quota_error(self, status: int, error: object) -> JudgeUnavailableError:
        """Return the error that ends a run because the service wants money first."""
        return JudgeUnavailableError(
            f"{self._label} answered {status}: {first_words(self.redacted(str(error)))}; the quota "
            "or the credit is spent: raise it at the service, then give the same command again, "
            "which asks for what is missing"
        )

    def _one_line_error(self, error: openai.APIError) -> EncoreError:
        """Return the client's error in one line with advice, without the key."""
        num_attempts = 1 + int(error.request.headers.get("x-stainless-retry-count", 0))
        attempts = f" ({num_attempts} attempts)" if num_attempts > 1 else ""
        can_wait = self._config.wait_for_server > 0
        wait_advice = "" if can_wait else "; --wait-for-server MINUTES waits for a server to return"
        if isinstance(error, openai.APIStatusError):
            status = error.status_code
            reason = first_words(self.redacted(error.response.text))
            variable, is_set = self._config.api_key_env, "" if self._key else "not "
            key = f"the key comes from the environment variable {variable}, which is {is_set}set"
            address = "check --judge and --base-url (most servers need /v1 at its end)"
            # Errors that every request would meet end the run.
            advice = {401: key, 403: key, 404: address}.get(status)
            if error.response.has_redirect_location:  # texts go to no other host
                advice = f"the server redirects to another address; {address}"
            kind = EncoreError if advice is None else JudgeUnavailableError
            if status in _PROMPT_STATUSES or status >= 500:
                kind = GatewayError if status in _AWAY_STATUSES else PromptFailedError
            is_busy = status == 429 or status >= 500
            advice = advice or (
                "see the server's log, or lower --concurrency" if is_busy else "see its log"
            )
            advice += wait_advice if kind is GatewayError else ""
            return kind(f"{self._label} answered {status}{attempts}: {reason}; {advice}")
        cause = error.__cause__ or error
        reason = first_words(self.redacted(f"{type(cause).__name__}: {cause}"))
        if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout):
            return ServerAwayError(
                f"{self._label} takes no connection{attempts}: {reason}{wait_advice}"
            )
        if isinstance(error, openai.APITimeoutError):
            limit = f"{self._config.request_timeout_seconds:g} s{attempts}"
            return EncoreError(
                f"{self._label} did not answer within {limit}; raise --request-timeout-seconds or "
                "lower --concurrency"
            )
        return EncoreError(f"{self._label} breaks the connection{attempts}: {reason}")
