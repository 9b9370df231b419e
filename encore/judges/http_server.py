"""The HTTP judge: any server that speaks OpenAI's protocol, through the `openai` client."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from encore.core.chat_tokenizer import FROZEN_DATE, load_tokenizer
from encore.core.errors import EncoreError, JudgeUnavailableError
from encore.core.model_files import ModelFinder
from encore.judges import http_protocol as protocol
from encore.judges.base import Decoding, JudgeIdentity, ProgressHook, Prompt, Reply
from encore.judges.http_protocol import UnreadableAnswerError, first_words
from encore.judges.judge_config import JudgeConfig

try:
    import openai
except ImportError as missing:
    raise JudgeUnavailableError(
        f"a judge over HTTP needs the package openai ({missing}); install the extra 'http'"
    ) from missing

logger = logging.getLogger(__name__)

#: Further attempts at a request whose failure may pass; the client waits 0.5 to 8 s between them,
#: or as long as the server says in `Retry-After`.
MAX_RETRIES = 5
#: vLLM answers ten and more prompts a request several times faster than one a request.
_PROMPTS_PER_REQUEST = 64
#: Between two reports of progress, and the longest that an interruption waits.
_TICK_SECONDS = 0.1
#: Shorter ones are placeholders such as EMPTY, which other texts may contain.
_SHORTEST_KEY = 8
_PROBE = "Answer with the number 0.5 and nothing else."
#: A server that ignores what it does not know will not say these by itself.
_PROBE_LABELS = ("xq", "qx")
_TOKENIZER = ModelFinder(name="tokenizer", error=JudgeUnavailableError)
_Result = TypeVar("_Result")


class HttpJudge:
    """A `encore.judges.base.Judge` behind a server; nothing is loaded here but a tokenizer.

    With a tokenizer the server is vLLM and gets token ids; without one any server gets the user
    message as a chat.
    """

    #: The server computes elsewhere: two shards are in work.
    is_on_cpu = False

    def __init__(self, config: JudgeConfig) -> None:
        """Find the tokenizer; the server is asked when it is needed."""
        self.config = config
        self.tokenizer = None
        if config.tokenizer is not None:
            self.tokenizer = load_tokenizer(_TOKENIZER.find(config.tokenizer, needs_weights=False))
        self._lock = threading.RLock()
        self._server: _Server | None = None
        #: What the server says of its models, if it has a list.
        self._served: dict[str, dict[str, Any]] = {}
        self._answers_as: str | None = None

    @property
    def identity(self) -> JudgeIdentity:
        """What is known of a model behind a server.

        A host stands for what it serves: the port and the path change when a server is started
        again. Two models of one name on one host need a `revision`.
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
            engine_args={"api": "chat" if tokenizer is None else "completions"},
        )

    def check(self, decoding: Decoding) -> None:
        """Ask one question: whether model, key and way of answering are what the server knows."""
        asked, kind = decoding, decoding.kind
        if kind == "choice":
            asked = replace(decoding, labels=_PROBE_LABELS, max_reply_tokens=16)
        [prompt] = [_PROBE] if self.tokenizer is None else self.tokenizer.encode([_PROBE])
        try:
            [reply] = self.reply([prompt], decoding=asked, on_progress=lambda _: None)
        except EncoreError as error:
            advice = f"; --decode text asks for less than {kind}" if kind != "text" else ""
            raise JudgeUnavailableError(f"{error}{advice}") from None
        if kind == "choice" and reply.text.strip() not in _PROBE_LABELS:
            raise self._refusal(
                f"ignores the choice of answers that it is given, which vLLM calls "
                f"structured_outputs, and says {reply.text[:40]!r}; give --decode text"
            )

    def start(self) -> None:
        """Open the connection; the model must be one that the server has.

        Raises:
            JudgeUnavailableError: It is not, or the server does not answer.
        """
        with self._lock:
            if self._server is not None:
                return
            logger.warning(
                "judge %s: texts are sent to %s", self.config.model, host_of(self.config)
            )
            server = _Server(self.config)
            try:
                listed = server.call(protocol.MODELS, None, protocol.read_models)
                self._served = server.run(listed)
                if self._served and self.config.model not in self._served:
                    names = server.redacted(", ".join(sorted(self._served)))
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
        sessions: Sequence[str] = (),
    ) -> list[Reply]:
        """Replies in prompt order; an exception cancels the requests that are under way."""
        self.start()
        assert self._server is not None
        on_progress(0)
        replies: dict[int, Reply] = {}
        named = sessions or [""] * len(prompts)
        work = self._ask_all(self._server, prompts, named, decoding, replies)
        self._server.run(work, tell=lambda: on_progress(len(replies)))
        return [replies[place] for place in range(len(prompts))]

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.close()

    def _max_model_len(self) -> int:
        if not self._served:  # known also when the connection is closed again
            self.start()
        context = self._served.get(self.config.model, {}).get("max_model_len")
        if not isinstance(context, int):
            raise self._refusal("does not say how long its context is; give --max-model-len")
        return context

    def _refusal(self, what: str) -> JudgeUnavailableError:
        who = f"judge {self.config.model!r}: the server at {host_of(self.config)}"
        return JudgeUnavailableError(f"{who} {what}")

    def _requests(self, sessions: Sequence[str]) -> Iterator[list[int]]:
        """The places of each request's prompts: token ids of one session together, chats alone."""
        most = 1 if self.tokenizer is None else _PROMPTS_PER_REQUEST
        for _, places in itertools.groupby(range(len(sessions)), key=sessions.__getitem__):
            while some := list(itertools.islice(places, most)):
                yield some

    async def _ask_all(
        self,
        server: _Server,
        prompts: Sequence[Prompt],
        sessions: Sequence[str],
        decoding: Decoding,
        replies: dict[int, Reply],
    ) -> None:
        requests = self._requests(sessions)

        async def work() -> None:
            for places in requests:
                some, session = [prompts[place] for place in places], sessions[places[0]]
                async with server.room:
                    found = await self._ask(server, some, session, decoding)
                replies.update(zip(places, found, strict=True))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.config.concurrency):
                    group.create_task(work())
        except BaseExceptionGroup as failed:  # the first one ended the others
            raise failed.exceptions[0] from None

    async def _ask(
        self, server: _Server, prompts: Sequence[Prompt], session: str, decoding: Decoding
    ) -> list[Reply]:
        model = self.config.model
        read: Callable[[Any], list[Reply]]
        if self.tokenizer is None:
            path, read = protocol.CHAT, partial(protocol.read_chat, decoding=decoding)
            body = protocol.chat_request(model, prompts[0], decoding)
        else:
            how: dict[str, Any] = {"decoding": decoding, "label_ids": ()}
            if decoding.kind == "expected":
                how["label_ids"] = self.tokenizer.label_tokens(decoding.labels)
            path, body = protocol.COMPLETIONS, protocol.completions_request(model, prompts, **how)
            read = partial(protocol.read_completions, num_prompts=len(prompts), **how)

        def checked(answer: Any) -> list[Reply]:
            self._check_model(answer)
            return read(answer)

        replies = await server.call(path, body, checked, session=session)
        return [replace(reply, text=server.redacted(reply.text)) for reply in replies]

    def _check_model(self, answer: Any) -> None:
        """Refuse answers by a model that was not asked.

        The dated name of a model that was asked for without its date is allowed, as long as it
        stays the same.
        """
        asked = self.config.model
        name = answer.get("model") if isinstance(answer, dict) else None
        if name is None:
            return
        if self._answers_as is None and str(name).startswith(asked):
            self._answers_as = name
        if name != self._answers_as:
            expected = self._answers_as or asked
            raise UnreadableAnswerError(f"it is by another model, {name!r} instead of {expected!r}")


def host_of(config: JudgeConfig) -> str:
    """The host that texts are sent to."""
    return str(urlsplit(config.base_url or "").hostname)


class _Server:
    """A client, and the thread that its requests run in: a bounded number for all callers."""

    def __init__(self, config: JudgeConfig) -> None:
        """Start the thread; nothing is sent."""
        for name in ("openai", "httpx", "httpcore", "httpx2", "httpcore2"):
            logging.getLogger(name).setLevel(logging.WARNING)  # below it, headers are logged
        self._config = config
        self._key = os.environ.get(config.api_key_env, "").strip()
        self._client = openai.AsyncOpenAI(
            api_key=self._key or "EMPTY",  # servers without keys read none
            base_url=config.base_url,
            timeout=config.request_timeout_seconds,
            max_retries=MAX_RETRIES,
        )
        self.room = asyncio.Semaphore(config.concurrency)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(
        self, work: Coroutine[Any, Any, _Result], *, tell: Callable[[], None] = lambda: None
    ) -> _Result:
        """What the work returns; the caller's thread waits, tells and can be interrupted."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while wait([future], timeout=_TICK_SECONDS).not_done:
                tell()
            tell()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel what is under way, close the connections, end the thread."""
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def call(
        self,
        path: str,
        body: dict[str, Any] | None,
        read: Callable[[Any], _Result],
        *,
        session: str = "",
    ) -> _Result:
        """What is read in the answer to one request. What cannot be read is asked for again.

        Raises:
            EncoreError: The server's error, or its last answer.
        """
        options: Any = {"follow_redirects": False}  # texts go to the host that was named
        options |= {"headers": {"X-Session-ID": session}} if session else {}
        asked: dict[str, Any] = {"cast_to": object, "options": options}
        send = self._client.get if body is None else partial(self._client.post, body=body)
        for attempt in range(1 + MAX_RETRIES):
            await asyncio.sleep(min(0.5 * 2 ** (attempt - 1), 8) if attempt else 0)
            try:
                return read(await send(path, **asked))
            except openai.APIStatusError as error:
                answer = protocol.stands_for(path, error.status_code, error.body)
                if answer is None:
                    raise self._explained(error) from None
                return read(answer)
            except openai.APIConnectionError as error:
                raise self._explained(error) from None
            except (ValueError, UnreadableAnswerError) as error:  # no JSON, or not this protocol's
                said = self.redacted(str(error))
        raise UnreadableAnswerError(
            f"{self._who} does not answer as the OpenAI protocol says ({1 + MAX_RETRIES} attempts):"
            f" {said}; check --base-url (most servers need /v1 at its end), see the server's log"
        )

    def redacted(self, text: str) -> str:
        """A text of the server without the key."""
        is_secret = len(self._key) >= _SHORTEST_KEY
        return text.replace(self._key, "[key]") if is_secret else text

    async def _stop(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.close()

    @property
    def _who(self) -> str:
        return f"judge {self._config.model!r}: {host_of(self._config)}"

    def _explained(self, error: openai.APIError) -> EncoreError:
        """The client's error in one line, without the key."""
        attempts = f"({1 + MAX_RETRIES} attempts)"
        if isinstance(error, openai.APIStatusError):
            words = first_words(self.redacted(error.response.text))
            variable, is_set = self._config.api_key_env, "" if self._key else "not "
            key = f"the key comes from the environment variable {variable}, which is {is_set}set"
            address = "check --judge and --base-url (most servers need /v1 at its end)"
            of_every_shard = {401: key, 403: key, 404: address}
            advice = of_every_shard.get(error.status_code)
            kind = EncoreError if advice is None else JudgeUnavailableError
            advice = advice or f"{attempts}; see the server's log, or lower --concurrency"
            return kind(f"{self._who} answered {error.status_code}: {words}; {advice}")
        if isinstance(error, openai.APITimeoutError):
            what = f"did not answer within {self._config.request_timeout_seconds:g} s {attempts}"
            return EncoreError(
                f"{self._who} {what}; raise --request-timeout-seconds or lower --concurrency"
            )
        cause = error.__cause__ or error
        words = first_words(self.redacted(f"{type(cause).__name__}: {cause}"))
        return EncoreError(f"{self._who} breaks the connection or takes none {attempts}: {words}")
