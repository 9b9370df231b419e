"""The judge on servers that speak OpenAI's protocol, and what becomes of prompts that fail.

The servers bound the speed, and the prefill of their model. This process needs 0.25 ms of processor
a prompt for requests of many prompts of token ids, and 0.9 ms for chats, which have a request each.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import re
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from encore.core.chat_tokenizer import FROZEN_DATE, ChatTokenizer, load_tokenizer
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
    total_usage,
)
from encore.judges.failed_prompts import PromptCounts, set_aside_reply, with_cost
from encore.judges.http_protocol import (
    CHOICE_FIELDS,
    ChoiceField,
    PromptFailedError,
    ServerAwayError,
    UnreadableAnswerError,
)
from encore.judges.http_servers import HttpServers, in_tasks
from encore.judges.judge_options import JudgeConfig
from encore.judges.served_model import ServedModel
from encore.judges.server_options import ServerOptions
from encore.judges.thinking import (
    NO_THINKING,
    after_thinking,
    closing_mark,
    thinking_step,
    thoughts_of,
)
from encore.judges.token_usage import LearnedTokens, RequestSize, checked_usage, request_size

logger = logging.getLogger(__name__)

#: Times that one request waits for the server: its prompt may be what ends the server.
_MAX_WAITS = 3
#: Complete answers to a prompt that are paid for before it is set aside, and the pause between two.
MAX_ANSWERS, _REPEAT_SECONDS = 2, 0.5
#: Prompts of token ids in a request at most, and requests that each server gets of a call at least.
#: Each request costs vLLM's front end time, which a small judge on a CPU lacks.
_PROMPTS_PER_REQUEST, _REQUESTS_PER_SERVER = 256, 4
_PROBE = "Answer with the number 0.5 and nothing else."
#: A server that ignores unknown options would not answer with these.
_PROBE_LABELS = ("xq", "qx")
#: Tokens of thinking in a test question.
_PROBE_THINKING = 16
_TOKENIZER = ModelFinder(name="tokenizer", error=JudgeUnavailableError)


class Request(NamedTuple):
    """Prompts that are asked together.

    Attributes:
        servers: Servers of which one answers.
        prompts: The prompts; a chat is alone.
        decoding: Way in which the judge answers.
        session: Name by which a server is chosen; empty for none.
    """

    servers: HttpServers
    prompts: Sequence[Prompt]
    decoding: Decoding
    session: str = ""


class HttpJudge:
    """Judge (`encore.judges.base.Judge`) on one server, or on several with the same model.

    With a tokenizer the servers must be vLLM, and get token ids. Without a tokenizer any server
    does, and gets the user message as a chat.
    """

    #: The server computes on another machine, so two shards are rated at the same time.
    is_on_cpu = False
    is_remote = True
    #: True if `set_servers` replaces servers while the judge is at work.
    servers_change = False

    def __init__(self, config: JudgeConfig, how: ServerOptions) -> None:
        """Load the tokenizer; nothing is sent to a server yet."""
        self.config, self.how = config, how
        self.tokenizer: ChatTokenizer | None = None
        if config.tokenizer is not None:
            files = _TOKENIZER.find(config.tokenizer, needs_weights=False)
            self.tokenizer = load_tokenizer(files, config.chat)
        self._lock = threading.RLock()
        self._servers: HttpServers | None = None
        self._model = ServedModel(config=config, how=how, tokenizer=self.tokenizer)
        self._learned_tokens = LearnedTokens()
        self._choice_field = CHOICE_FIELDS[0]

    @property
    def num_engines(self) -> int:
        """Number of servers that reply at the same time."""
        return len(self.how.base_urls)

    @property
    def identity(self) -> JudgeIdentity:
        """Part of the run key: the facts that are known of a model on a server.

        Without a revision the host identifies the model, because port and path change when a
        server is restarted. Two models of the same name on one host need a `revision`.
        """
        config, tokenizer = self.config, self.tokenizer
        context = config.max_model_len or 0
        if tokenizer is not None and not context:
            self.start()  # what the server says is kept when the connection is closed
            context = self._model.context
        is_path = config.model.startswith(("/", ".", "~"))
        return JudgeIdentity(
            backend="http",
            name=config.model.rstrip("/").rpartition("/")[2] if is_path else config.model,
            revision=config.revision or self.how.host,
            dtype="as served",
            chat_template_sha256="" if tokenizer is None else tokenizer.template_sha256,
            frozen_date="" if tokenizer is None else FROZEN_DATE,
            max_model_len=context,
            engine_args={
                "api": config.api or ("chat" if tokenizer is None else "completions"),
                **self.config.chat.keyed,
                **config.keyed_request,
            },
        )

    @property
    def wait_seconds(self) -> float:
        """Time that this judge has waited while no server was there."""
        return 0.0 if self._servers is None else self._servers.wait_seconds

    def server_rows(self) -> list[dict[str, object]]:
        """Return a row per server for people: address, state, prompts, speed, requests at work."""
        return [] if self._servers is None else self._servers.rows()

    def set_servers(self, urls: Collection[str]) -> None:
        """Have servers at these addresses and no others. A dropped one's requests go to them."""
        assert self._servers is not None
        self._servers.run(self._servers.replace(urls))

    def check(self, decoding: Decoding) -> None:
        """Send a test question, so that a wrong model, key or decoding is refused at once."""
        probe, kind = decoding, decoding.kind
        if kind == "choice":
            num_tokens = 16 * (decoding.num_scores or 1)
            probe = replace(decoding, labels=_PROBE_LABELS, max_reply_tokens=num_tokens)
        if decoding.think_tokens is not None:
            probe = replace(probe, think_tokens=min(_PROBE_THINKING, decoding.think_tokens))
        self.start()
        is_choice = kind == "choice" and self.tokenizer is None and not probe.num_scores
        fields = CHOICE_FIELDS if is_choice else CHOICE_FIELDS[:1]
        errors: list[JudgeUnavailableError] = []
        for field in fields:
            if (error := self._error_of(probe, field)) is None:
                return
            errors.append(error)
        raise errors[0]

    def _error_of(self, probe: Decoding, field: ChoiceField) -> JudgeUnavailableError | None:
        """Send a test question; return why it has no answer in the decoding's form, if it has none.

        Args:
            probe: Way in which the judge answers, with labels that no reply has by chance.
            field: Field of the request for a choice. Later requests have it too.
        """
        kind, self._choice_field = probe.kind, field
        try:
            [reply] = self.reply([self._probe_prompt()], decoding=probe, on_progress=lambda _: None)
        except EncoreError as error:
            advice = f"; --decode text asks for less than {kind}" if kind != "text" else ""
            return JudgeUnavailableError(f"{error}{advice}")
        answer = reply.text
        if probe.think_tokens is not None:
            _, mark, answer = answer.rpartition(closing_mark(probe))
            if not mark:
                return self._model.refusal(NO_THINKING)
        pattern = probe.scores_pattern if probe.num_scores else "|".join(_PROBE_LABELS)
        text, pattern = ("".join(part.split()) for part in (answer, pattern))
        if kind == "choice" and not re.fullmatch(pattern, text):
            return self._model.refusal(
                f"ignores the choice of answers that it is given (as {' or '.join(CHOICE_FIELDS)}) "
                f"and says {answer[:40]!r}; give --decode text"
            )
        if field != CHOICE_FIELDS[0]:
            logger.warning("judge %s: %s holds it to the scale", self.config.model, field)
        return None

    def start(self) -> None:
        """Connect to the servers and check that they have the model.

        Raises:
            JudgeUnavailableError: One has no such model, another context or tokenizer, or none
                answers.
        """
        with self._lock:
            if self._servers is not None:
                return
            if self.is_remote:
                logger.warning("judge %s: texts are sent to %s", self.config.model, self.how.host)
            servers = HttpServers(
                self.config.model,
                self.how,
                num_servers=self.num_engines,
                may_change=self.servers_change,
                check=self._model.check_server,
            )
            try:
                servers.run(servers.ask_until_back(servers.open))
            except EncoreError as error:
                servers.close()
                raise JudgeUnavailableError(str(error)) from None
            self._servers = servers

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
        assert self._servers is not None
        servers, replies = self._servers, dict[int, Reply]()
        new_replies = deque[tuple[int, Reply]]()  # filled in the server's thread
        session_of = sessions or [""] * len(prompts)
        requests = self._prompts_of_requests(session_of)
        counts = PromptCounts(num_answered)

        async def send_requests() -> None:
            """Send one request after the other, until the tasks together have sent all."""
            for indices in requests:
                batch = [prompts[index] for index in indices]
                request = Request(servers, batch, decoding, session_of[indices[0]])
                async with servers.request_limit:
                    counts.num_sent += len(batch)
                    try:
                        batch_replies = await self._reply_or_set_aside(request, counts)
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
            num_tasks = min(len(prompts), self.how.concurrency * self.num_engines)
            servers.run(in_tasks(send_requests, num_tasks), on_tick=report)
        finally:
            pass_replies_on()
        return [replies[index] for index in range(len(prompts))]

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            servers, self._servers = self._servers, None
        if servers is not None:
            servers.close()

    def _probe_prompt(self) -> Prompt:
        """Return the prompt of a test question."""
        return _PROBE if self.tokenizer is None else self.tokenizer.encode([_PROBE])[0]

    async def _reply_to_probe(self, request: Request) -> Reply:
        """Return the reply to a test question, asked in the way of a request."""
        probe = Request(request.servers, [self._probe_prompt()], request.decoding)
        [reply] = await self._reply_to_batch(probe)
        return reply

    def _prompts_of_requests(self, sessions: Sequence[str]) -> Iterator[list[int]]:
        """Yield the indices of each request's prompts.

        A chat has a request of its own. Prompts of token ids share requests, and all of a session
        stand in one as far as it has room.
        """
        limit = 1
        if self.tokenizer is not None:
            num_requests = _REQUESTS_PER_SERVER * self.num_engines
            limit = min(_PROMPTS_PER_REQUEST, math.ceil(len(sessions) / num_requests))
        batch: list[int] = []
        for _, group in itertools.groupby(range(len(sessions)), key=sessions.__getitem__):
            indices = [*group]
            if batch and len(batch) + len(indices) > limit:
                yield batch
                batch = []
            batch += indices
            while len(batch) > max(limit, 1):
                yield batch[:limit]
                batch = batch[limit:]
        if batch:
            yield batch

    async def _reply_or_set_aside(
        self, request: Request, counts: PromptCounts, *, max_answers: int = MAX_ANSWERS
    ) -> list[Reply]:
        """Return the replies to the prompts of one request; set a prompt aside that fails twice.

        A prompt whose answers cannot be read is set aside after ``max_answers`` of them.
        """
        has_fallback = counts.num_answered is not None and len(request.prompts) > 1
        cost = PromptFailedError()
        for is_second in (False, True):
            num_read = counts.num_read
            try:
                replies = await self._reply_when_back(
                    request, max_answers=1 if has_fallback else max_answers
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
                    await self._check_server(request, cost)
                if is_paid:
                    break
            else:
                counts.num_read += 1
                counts.num_failed -= is_second
                return with_cost(replies, cost)
        if has_fallback:
            singles = [  # one of the prompts may have failed the others
                await self._reply_or_set_aside(
                    request._replace(prompts=[prompt]), counts, max_answers=2 - is_paid
                )
                for prompt in request.prompts
            ]
            return with_cost([reply for [reply] in singles], cost)
        logger.info("a prompt is set aside: %s", cost)
        return [set_aside_reply(cost, UNREADABLE_ANSWER if is_paid else SERVER_ERROR)]

    async def _check_server(self, request: Request, cost: PromptFailedError) -> None:
        """Ask the server a test question after a prompt failed, and add what it cost.

        Raises:
            EncoreError: The server does not answer it either.
        """
        try:
            reply = await self._reply_to_probe(request)
        except PromptFailedError as error:
            error.add_cost(cost.usage, cost.num_calls)
            raise
        cost.add_cost(reply.usage, reply.num_calls)

    async def _reply_when_back(self, request: Request, *, max_answers: int) -> list[Reply]:
        """Return the replies to the prompts of one request; wait while the server is away.

        It is away while it does not answer a test question. If it answers that at once, the prompts
        are the reason of the error.
        """
        probe = partial(self._reply_to_probe, request)
        for _ in range(_MAX_WAITS):
            try:
                return await self._reply_to_batch(request, max_answers=max_answers)
            except ServerAwayError:
                can_wait = self.how.wait_for_server > 0
                if not (can_wait and await request.servers.wait_until_back(probe)):
                    raise
        return await self._reply_to_batch(request, max_answers=max_answers)

    async def _reply_to_batch(
        self, request: Request, *, max_answers: int = MAX_ANSWERS
    ) -> list[Reply]:
        """Ask the prompts of one request, and return their replies.

        With a tokenizer, a judge that thinks has two requests: its thinking, then its answer.
        """
        tokenizer, decoding = self.tokenizer, request.decoding
        if tokenizer is None or decoding.think_tokens is None:
            return await self._reply_in_one_step(request, max_answers=max_answers)
        first_step = request._replace(decoding=thinking_step(decoding))
        replies = await self._reply_in_one_step(first_step, max_answers=max_answers)
        thoughts = thoughts_of(tokenizer, request.prompts, replies, decoding)
        second_step = request._replace(prompts=[thought.prompt for thought in thoughts])
        try:
            answers = await self._reply_in_one_step(second_step, max_answers=max_answers)
        except PromptFailedError as error:  # the thinking was paid for
            error.add_cost(total_usage(reply.usage for reply in replies), len(replies))
            raise
        return [*map(after_thinking, thoughts, answers)]

    async def _reply_in_one_step(self, request: Request, *, max_answers: int) -> list[Reply]:
        """Send the prompts of one request, and return their replies (`_ask`)."""
        prompts, decoding, model = request.prompts, request.decoding, self.config.model
        read: Callable[..., list[Reply]]
        if self.tokenizer is None:
            path, read = protocol.CHAT, partial(protocol.read_chat, decoding=decoding)
            body = protocol.chat_request(
                model, prompts[0], decoding, choice_field=self._choice_field
            )
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
        return await self._ask(request, path, body, read, size, max_answers=max_answers)

    async def _ask(
        self,
        request: Request,
        path: str,
        body: dict[str, Any],
        read: Callable[..., list[Reply]],
        size: RequestSize,
        *,
        max_answers: int,
    ) -> list[Reply]:
        """Send one request, and return the replies that ``read`` finds in its answer.

        A complete answer is paid for, whether it can be read or not, and at temperature 0 the next
        one is mostly the same. So it is asked for once more at most.

        Raises:
            UnreadableAnswerError: No answer can be read. It has the cost of all.
        """
        servers, prompts, _, session = request

        def check_and_read(answer: Any) -> list[Reply]:
            self._model.check_answer(answer)
            return read(answer, size=size)

        cost = PromptFailedError()
        for _ in range(max_answers):
            if cost.num_calls:
                await asyncio.sleep(_REPEAT_SECONDS)
            try:
                replies = await servers.request(
                    path, body, check_and_read, session=session, num_prompts=len(prompts)
                )
            except UnreadableAnswerError as error:
                usage, _ = checked_usage(error.answer, size)
                error.add_cost(usage, len(prompts))
                error.add_cost(cost.usage, cost.num_calls)
                cost = error
            else:
                usage = total_usage(reply.usage for reply in replies)
                if USAGE_ESTIMATED not in replies[0].remarks and usage != NO_USAGE:
                    self._learned_tokens.add(usage, size)
                return with_cost(replies, cost)
        raise cost
