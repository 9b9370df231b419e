"""The judge on a server that speaks OpenAI's protocol, and what becomes of prompts that fail."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from encore.core.chat_tokenizer import FROZEN_DATE, load_tokenizer
from encore.core.errors import EncoreError, JudgeUnavailableError
from encore.core.model_files import ModelFinder
from encore.judges import http_protocol as protocol
from encore.judges.base import (
    NO_USAGE,
    SERVER_ERROR,
    UNREADABLE_ANSWER,
    USAGE_ESTIMATED,
    Decoding,
    JudgeIdentity,
    ProgressHook,
    Prompt,
    Reply,
    ReplyHook,
    ignore_reply,
)
from encore.judges.failed_prompts import PromptCounts, set_aside_reply, with_cost
from encore.judges.http_protocol import (
    OtherModelError,
    PromptFailedError,
    ServerAwayError,
    UnreadableAnswerError,
    first_words,
)
from encore.judges.http_server import HttpServer, host_of
from encore.judges.judge_options import JudgeConfig
from encore.judges.model_names import advice_on_name, is_name_of
from encore.judges.token_usage import LearnedTokens, checked_usage, request_size

logger = logging.getLogger(__name__)

#: Times that one request waits for the server: its prompt may be what ends the server.
_MAX_WAITS = 3
#: Complete answers to a prompt that are paid for before it is set aside, and the pause between two.
_MAX_ANSWERS, _REPEAT_SECONDS = 2, 0.5
#: vLLM answers requests of ten or more prompts several times faster than requests of one prompt.
_PROMPTS_PER_REQUEST = 64
#: Fields of a request that change its cost, its speed or its record at the service but no reply.
_FIELDS_WITHOUT_EFFECT = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier"),
        *("priority", "cache_salt"),
    }
)
_PROBE = "Answer with the number 0.5 and nothing else."
#: A server that ignores unknown options would not answer with these.
_PROBE_LABELS = ("xq", "qx")
_TOKENIZER = ModelFinder(name="tokenizer", error=JudgeUnavailableError)


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
        self._server: HttpServer | None = None
        #: The server's list of models; empty if it has none.
        self._listed_models: dict[str, dict[str, Any]] = {}
        #: Name of the model in the first answer.
        self._answering_model: str | None = None
        self._learned_tokens = LearnedTokens()

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
        """Part of the identity: fields of requests and names of the model that the user gave.

        Headers are no part: they hold keys and accounts, which change while the model stays.
        """
        fields = self.config.request_fields
        added = {name: fields[name] for name in fields.keys() - _FIELDS_WITHOUT_EFFECT}
        omitted = sorted({*self.config.omit_fields} - _FIELDS_WITHOUT_EFFECT)
        served = sorted(self.config.served_models)
        keyed = {"request_fields": added, "omit_fields": omitted, "served_models": served}
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
            server = HttpServer(self.config)
            try:
                list_models = partial(server.request, protocol.MODELS, None, protocol.read_models)
                self._listed_models = server.run(server.ask_until_back(list_models))
                accepted = {self.config.model, *self.config.served_models}
                if self._listed_models and accepted.isdisjoint(self._listed_models):
                    names = first_words(", ".join(sorted(self._listed_models)))
                    raise self._refusal(
                        f"has no such model; it has {names}: give one as --judge, or, if "
                        f"{self.config.model!r} is a deployment of one, this one as --served-model"
                    )
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
        counts = PromptCounts(num_answered)

        async def send_requests() -> None:
            """Send one request after the other, until the tasks together have sent all."""
            for indices in requests:
                batch, session = [prompts[index] for index in indices], session_of[indices[0]]
                async with server.request_limit:
                    counts.num_sent += len(batch)
                    try:
                        batch_replies = await self._reply_or_set_aside(
                            server, batch, session, decoding, counts
                        )
                    except PromptFailedError as error:
                        if error.num_calls:  # the caller counts what it cost
                            new_replies.append((indices[0], set_aside_reply(error, SERVER_ERROR)))
                        raise
                batch_items = [*zip(indices, batch_replies, strict=True)]
                replies.update(batch_items)
                new_replies.extend(batch_items)

        def pass_replies_on() -> None:
            while new_replies:
                on_reply(*new_replies.popleft())

        def report() -> None:
            pass_replies_on()
            on_progress(len(replies))

        on_progress(0)
        try:
            server.run(_in_tasks(send_requests, self.config.concurrency), on_tick=report)
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
        server: HttpServer,
        prompts: Sequence[Prompt],
        session: str,
        decoding: Decoding,
        counts: PromptCounts,
        *,
        max_answers: int = _MAX_ANSWERS,
    ) -> list[Reply]:
        """Return the replies to the prompts of one request; set a prompt aside that fails twice.

        A prompt whose answers cannot be read is set aside after ``max_answers`` of them.
        """
        has_fallback = counts.num_answered is not None and len(prompts) > 1
        cost = PromptFailedError()
        for is_second in (False, True):
            num_read = counts.num_read
            try:
                replies = await self._reply_when_back(
                    server,
                    prompts,
                    session,
                    decoding,
                    max_answers=1 if has_fallback else max_answers,
                )
            except PromptFailedError as error:
                error.add_cost(cost.usage, cost.num_calls)
                cost, is_paid = error, isinstance(error, UnreadableAnswerError)
                if has_fallback:
                    break
                counts.num_failed += not is_second
                if not counts.allow_failures:
                    raise
                if not is_paid or counts.num_read == num_read:
                    await self._check_server(server, decoding, cost)
                if is_paid:
                    break
            else:
                counts.num_read += 1
                counts.num_failed -= is_second
                return with_cost(replies, cost)
        if has_fallback:
            singles = [  # one of the prompts may have failed the others
                await self._reply_or_set_aside(
                    server, [prompt], session, decoding, counts, max_answers=2 - is_paid
                )
                for prompt in prompts
            ]
            return with_cost([reply for [reply] in singles], cost)
        logger.info("a prompt is set aside: %s", cost)
        return [set_aside_reply(cost, UNREADABLE_ANSWER if is_paid else SERVER_ERROR)]

    async def _check_server(
        self, server: HttpServer, decoding: Decoding, cost: PromptFailedError
    ) -> None:
        """Ask the server a test question after a prompt failed, and add what it cost.

        Raises:
            EncoreError: The server does not answer it either.
        """
        probe = [self._probe_prompt()]
        try:
            [reply] = await self._reply_to_batch(server, probe, "", decoding)
        except PromptFailedError as error:
            error.add_cost(cost.usage, cost.num_calls)
            raise
        cost.add_cost(reply.usage, reply.num_calls)

    async def _reply_when_back(
        self,
        server: HttpServer,
        prompts: Sequence[Prompt],
        session: str,
        decoding: Decoding,
        *,
        max_answers: int,
    ) -> list[Reply]:
        """Return the replies to the prompts of one request; wait while the server is away.

        It is away while it does not answer a test question. If it answers that at once, the prompts
        are the reason of the error.
        """
        ask = partial(
            self._reply_to_batch, server, prompts, session, decoding, max_answers=max_answers
        )
        probe = partial(self._reply_to_batch, server, [self._probe_prompt()], "", decoding)
        for _ in range(_MAX_WAITS):
            try:
                return await ask()
            except ServerAwayError:
                if not self.config.wait_for_server or not await server.wait_until_back(probe):
                    raise
        return await ask()

    async def _reply_to_batch(
        self,
        server: HttpServer,
        prompts: Sequence[Prompt],
        session: str,
        decoding: Decoding,
        *,
        max_answers: int = _MAX_ANSWERS,
    ) -> list[Reply]:
        """Send the prompts of one request, and return their replies.

        A complete answer is paid for, whether it can be read or not, and at temperature 0 the next
        one is mostly the same. So it is asked for once more at most.

        Raises:
            UnreadableAnswerError: No answer can be read. It has the cost of all.
        """
        model = self.config.model
        read: Callable[..., list[Reply]]
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

        body = self.config.request_body(body)
        size = request_size(prompts, body, self._learned_tokens)

        def check_and_read(answer: Any) -> list[Reply]:
            self._check_model(answer)
            return read(answer, size=size)

        cost = PromptFailedError()
        for _ in range(max_answers):
            if cost.num_calls:
                await asyncio.sleep(_REPEAT_SECONDS)
            try:
                replies = await server.request(path, body, check_and_read, session=session)
            except UnreadableAnswerError as error:
                usage, _ = checked_usage(error.answer, size)
                error.add_cost(usage, len(prompts))
                error.add_cost(cost.usage, cost.num_calls)
                cost = error
            else:
                if USAGE_ESTIMATED not in replies[0].remarks and replies[0].usage != NO_USAGE:
                    self._learned_tokens.add(replies[0].usage, size)
                return with_cost(replies, cost)
        raise cost

    def _check_model(self, answer: Any) -> None:
        """Refuse answers of another model than the judge.

        A server may answer with a prefix or a dated name of the model, as long as it stays the
        same, and with every name that the user accepts.

        Raises:
            OtherModelError: The answer is of another model.
        """
        config = self.config
        name = answer.get("model") if isinstance(answer, dict) else None
        if name is None or name in config.served_models:
            return
        if self._answering_model is None and is_name_of(name, config.model):
            self._answering_model = name
            if name != config.model:
                logger.warning("judge %s: the server answers as %r", config.model, name)
        if name != self._answering_model:
            expected = self._answering_model or config.model
            raise OtherModelError(
                f"judge {config.model!r}: {host_of(config)} answers as another model, {name!r} "
                f"instead of {expected!r}; {advice_on_name(name, config)}",
                answer=answer,
            )


async def _in_tasks(work: Callable[[], Coroutine[Any, Any, None]], num_tasks: int) -> None:
    """Do some work in several tasks until each has ended, or one fails."""
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(num_tasks):
                group.create_task(work())
    except BaseExceptionGroup as errors:  # the first error cancelled the other tasks
        raise errors.exceptions[0] from None
