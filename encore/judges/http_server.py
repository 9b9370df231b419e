"""The HTTP judge: any server that speaks OpenAI's protocol, through the `openai` client."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from encore.config import JudgeConfig
from encore.errors import EncoreError, JudgeUnavailableError
from encore.judges import http_protocol as protocol
from encore.judges.base import Decoding, JudgeIdentity, ProgressHook, Prompt, Reply
from encore.judges.chat import FROZEN_DATE, ChatTokenizer, load_tokenizer
from encore.judges.http_protocol import UnreadableAnswerError, first_words
from encore.model_files import ModelRole

if TYPE_CHECKING:
    import openai

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
_TOKENIZER = ModelRole(name="tokenizer", error=JudgeUnavailableError)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _Batch:
    """Prompts of one request, and the place of the first one."""

    start: int
    prompts: Sequence[Prompt]
    session: str


class HttpJudge:
    """A `encore.judges.base.Judge` behind a server; nothing is loaded here but a tokenizer.

    With a tokenizer the server is vLLM and gets token ids; without one any server gets the user
    message as a chat. Requests run in a thread of their own, a bounded number at once, whatever the
    number of callers.
    """

    def __init__(self, config: JudgeConfig) -> None:
        """Find the tokenizer; the server is asked when it is needed."""
        assert config.base_url is not None, "checked by the config"
        self.config = config
        self.host = str(urlsplit(config.base_url).hostname)
        self._key = _key(config.api_key_env)
        self._tokenizer: ChatTokenizer | None = None
        if config.tokenizer is not None:
            self._tokenizer = load_tokenizer(_TOKENIZER.find(config.tokenizer, needs_weights=False))
        self._lock = threading.RLock()
        self._requests: _Requests | None = None
        self._served: dict[str, Any] = {}
        self._answers_as: str | None = None
        self._limit = "max_tokens"

    @property
    def identity(self) -> JudgeIdentity:
        """What is known of a model behind a server.

        A host stands for what it serves: the port and the path change when a server is started
        again. Two models of one name on one host need a `revision`.
        """
        config, tokenizer = self.config, self._tokenizer
        context = config.max_model_len or 0
        if tokenizer is not None and not context:
            context = self._max_model_len()
        is_path = config.model.startswith(("/", ".", "~"))
        return JudgeIdentity(
            backend="http",
            name=config.model.rstrip("/").rpartition("/")[2] if is_path else config.model,
            revision=config.revision or self.host,
            dtype="as served",
            chat_template_sha256="" if tokenizer is None else tokenizer.template_sha256,
            frozen_date="" if tokenizer is None else FROZEN_DATE,
            max_model_len=context,
            engine_args={"api": "chat" if tokenizer is None else "completions"},
        )

    @property
    def tokenizer(self) -> ChatTokenizer | None:
        """Of completions; chat completions read texts."""
        return self._tokenizer

    @property
    def is_on_cpu(self) -> bool:
        """False: the server computes elsewhere, so two shards are in work."""
        return False

    def check(self, decoding: Decoding) -> None:
        """Ask one question: whether model, key and way of answering are what the server knows."""
        probe = decoding
        if decoding.kind == "choice":
            probe = Decoding(kind="choice", max_reply_tokens=16, labels=_PROBE_LABELS)
        prompt: Prompt = _PROBE
        if self._tokenizer is not None:
            [prompt] = self._tokenizer.encode([_PROBE])
        self.start()
        try:
            [reply] = self.reply([prompt], decoding=probe, on_progress=lambda _: None)
        except EncoreError as error:
            advice = ""
            if decoding.kind != "text":
                advice = f"; --decode {decoding.kind} may be what it cannot do: try --decode text"
            raise JudgeUnavailableError(f"{error}{advice}") from None
        if decoding.kind == "choice" and reply.text.strip() not in _PROBE_LABELS:
            raise JudgeUnavailableError(
                f"judge {self.config.model!r} at {self.host}: the server ignores the choice of "
                f"answers that it is given (it said {reply.text[:40]!r}), which vLLM calls "
                "structured_outputs; give --decode text"
            )

    def start(self) -> None:
        """Open the connection; the model must be one that the server has.

        Raises:
            JudgeUnavailableError: It is not, or the server does not answer.
        """
        with self._lock:
            if self._requests is None:
                logger.warning("judge %s: texts are sent to %s", self.config.model, self.host)
                self._requests = _Requests(self.config, self._key)
                try:
                    self._find_model(self._requests.run(self._models()))
                except BaseException:
                    self.close()
                    raise

    def _find_model(self, listed: Sequence[dict[str, Any]] | None) -> None:
        if listed is None:  # not every gateway has a list
            return
        self._served = {str(one.get("id")): one for one in listed}
        if self.config.model not in self._served:
            raise JudgeUnavailableError(
                f"judge {self.config.model!r}: the server at {self.host} has no such model; it has "
                f"{self._redacted(', '.join(sorted(self._served))) or 'none'}: give one of them as "
                "--judge"
            )

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
        assert self._requests is not None
        on_progress(0)
        replies: dict[int, Reply] = {}
        work = self._ask_all(self._batches(prompts, sessions), decoding, replies)
        self._requests.run(work, tell=lambda: on_progress(len(replies)))
        return [replies[place] for place in range(len(prompts))]

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            requests, self._requests = self._requests, None
        if requests is not None:
            requests.close()

    def _max_model_len(self) -> int:
        self.start()
        context = self._served.get(self.config.model, {}).get("max_model_len")
        if not isinstance(context, int):
            raise JudgeUnavailableError(
                f"judge {self.config.model!r}: the server at {self.host} does not say how long its "
                "context is, as vLLM does; give --max-model-len, or leave --tokenizer out"
            )
        return context

    def _batches(self, prompts: Sequence[Prompt], sessions: Sequence[str]) -> Iterator[_Batch]:
        """Token ids of one session together; chats one by one."""
        most, start = 1 if self._tokenizer is None else _PROMPTS_PER_REQUEST, 0
        named = sessions or [""] * len(prompts)
        for session, group in itertools.groupby(range(len(prompts)), key=named.__getitem__):
            places = list(group)
            for start in range(places[0], places[-1] + 1, most):
                yield _Batch(start, prompts[start : min(start + most, places[-1] + 1)], session)

    async def _ask_all(
        self, batches: Iterator[_Batch], decoding: Decoding, replies: dict[int, Reply]
    ) -> None:
        assert self._requests is not None
        room = self._requests.room

        async def work() -> None:
            for batch in batches:
                async with room:
                    found = await self._ask(batch, decoding)
                replies.update(enumerate(found, start=batch.start))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.config.concurrency):
                    group.create_task(work())
        except BaseExceptionGroup as failed:  # the first one ended the others
            raise failed.exceptions[0] from None

    async def _ask(self, batch: _Batch, decoding: Decoding) -> list[Reply]:
        model, texts = self.config.model, [one for one in batch.prompts if isinstance(one, str)]
        if texts:
            [message] = texts
            body = protocol.chat_request(model, message, decoding, limit=self._limit)
            replies = await self._post(
                "/chat/completions",
                body,
                lambda answer: [protocol.read_chat(answer, decoding)],
                session=batch.session,
            )
        else:
            token_ids = [one for one in batch.prompts if not isinstance(one, str)]
            label_ids: tuple[int, ...] = ()
            if decoding.kind == "expected" and self._tokenizer is not None:
                label_ids = self._tokenizer.label_tokens(decoding.labels)
            replies = await self._post(
                "/completions",
                protocol.completions_request(model, token_ids, decoding, label_ids=label_ids),
                lambda answer: protocol.read_completions(
                    answer, decoding, num_prompts=len(token_ids), label_ids=label_ids
                ),
                session=batch.session,
            )
        return [replace(reply, text=self._redacted(reply.text)) for reply in replies]

    async def _post(
        self,
        path: str,
        body: dict[str, Any],
        read: Callable[[Any], list[Reply]],
        *,
        session: str,
    ) -> list[Reply]:
        """The replies to one request. What cannot be read is asked for again.

        Raises:
            EncoreError: The server's error, or its last answer.
        """
        import openai

        assert self._requests is not None
        options: Any = {"follow_redirects": False}  # texts go to the host that was named
        if session:
            options["headers"] = {"X-Session-ID": session}
        for attempt in itertools.count():
            try:
                post = self._requests.client.post
                answer = await post(path, cast_to=object, body=body, options=options)
                self._check_model(answer)
                return read(answer)
            except openai.APIStatusError as error:
                refusal = protocol.read_refusal(error.status_code, error.body)
                if refusal is not None and path == "/chat/completions":
                    return [refusal]
                if "max_completion_tokens" in str(error) and "max_tokens" in body:
                    self._limit = "max_completion_tokens"
                    body[self._limit] = body.pop("max_tokens")
                    continue
                raise self._explained(error) from None
            except openai.APIConnectionError as error:
                raise self._explained(error) from None
            except (ValueError, UnreadableAnswerError) as error:  # no JSON, or not this protocol's
                if attempt == MAX_RETRIES:
                    raise UnreadableAnswerError(
                        f"judge {self.config.model!r}: {self.host} does not answer as the OpenAI "
                        f"protocol says ({1 + MAX_RETRIES} attempts): "
                        f"{self._redacted(str(error))}; check --base-url, see the server's log"
                    ) from None
            await asyncio.sleep(min(0.5 * 2**attempt, 8))
        raise AssertionError("the loop returns or raises")

    def _check_model(self, answer: Any) -> None:
        """Refuse answers by a model that was not asked.

        The dated name of a model that was asked for without its date is allowed, as long as it
        stays the same.
        """
        name = answer.get("model") if isinstance(answer, dict) else None
        if name is None:
            return
        asked = self.config.model
        if self._answers_as is None and str(name).startswith(asked):
            self._answers_as = name
        if name != self._answers_as:
            expected = self._answers_as or asked
            raise UnreadableAnswerError(f"it is by another model, {name!r} instead of {expected!r}")

    async def _models(self) -> list[dict[str, Any]] | None:
        """The server's models; None where it has no list."""
        import openai

        assert self._requests is not None
        try:
            answer: Any = await self._requests.client.get("/models", cast_to=object)
        except openai.NotFoundError:
            return None
        except (openai.APIStatusError, openai.APIConnectionError) as error:
            raise JudgeUnavailableError(str(self._explained(error))) from None
        except ValueError as error:
            answer = error
        listed = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(listed, list):
            raise JudgeUnavailableError(
                f"judge {self.config.model!r}: {self.host} lists no models as the OpenAI protocol "
                f"says: {first_words(self._redacted(str(answer)))}; check --base-url, most servers "
                "need /v1 at its end"
            )
        return [one for one in listed if isinstance(one, dict)]

    def _explained(self, error: openai.APIError) -> EncoreError:
        """The client's error in one line, without the key."""
        import openai

        who, attempts = f"judge {self.config.model!r}: {self.host}", f"{1 + MAX_RETRIES} attempts"
        if isinstance(error, openai.APIStatusError):
            status, said = error.status_code, first_words(self._redacted(error.response.text))
            what = f"{who} answered {status}: {said}"
            if status in (401, 403):  # the same for every shard
                is_set = "is set" if self._key else "is not set"
                return JudgeUnavailableError(
                    f"{what}; the key comes from the environment variable "
                    f"{self.config.api_key_env}, which {is_set}"
                )
            if status == 404:
                return JudgeUnavailableError(
                    f"{what}; check --judge and --base-url (most servers need /v1 at its end)"
                )
            advice = "wait, or lower --concurrency" if status == 429 else "see the server's log"
            return EncoreError(f"{what} ({attempts}); {advice}")
        if isinstance(error, openai.APITimeoutError):
            return EncoreError(
                f"{who} did not answer within {self.config.request_timeout_seconds:g} s "
                f"({attempts}); raise --request-timeout-seconds or lower --concurrency"
            )
        cause = error.__cause__ or error
        return EncoreError(
            f"{who} broke the connection or took none ({attempts}): {type(cause).__name__}: "
            f"{first_words(self._redacted(str(cause)))}; see whether the server runs"
        )

    def _redacted(self, text: str) -> str:
        is_secret = len(self._key) >= _SHORTEST_KEY
        return text.replace(self._key, "[key]") if is_secret else text


def _key(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise JudgeUnavailableError(
            f"environment variable {variable}: it has characters that no key has; set it again"
        )
    return key


class _Requests:
    """A client, and the thread that its requests run in."""

    def __init__(self, config: JudgeConfig, key: str) -> None:
        """Start the thread; nothing is sent."""
        try:
            import openai
        except ImportError as error:
            raise JudgeUnavailableError(
                f"a judge over HTTP needs the package openai ({error}); install the extra 'http'"
            ) from error
        for name in ("openai", "httpx", "httpcore", "httpx2", "httpcore2"):
            logging.getLogger(name).setLevel(logging.WARNING)  # below it, headers are logged
        self.room = asyncio.Semaphore(config.concurrency)
        self.client = openai.AsyncOpenAI(
            api_key=key or "EMPTY",  # servers without keys read none
            base_url=config.base_url,
            timeout=config.request_timeout_seconds,
            max_retries=MAX_RETRIES,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="http-judge")
        self._thread.daemon = True
        self._thread.start()

    def run(
        self, work: Coroutine[Any, Any, _Result], *, tell: Callable[[], None] = lambda: None
    ) -> _Result:
        """What the work returns; the caller's thread waits, tells and can be interrupted."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            is_done = False
            while not is_done:
                is_done = bool(wait([future], timeout=_TICK_SECONDS).done)
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

    async def _stop(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.client.close()
