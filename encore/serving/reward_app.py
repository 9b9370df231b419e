"""The reward server's paths: read a request, encode it, have it scored, answer; count and log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from encore.export.weights_input import Composition
from encore.model.opening import OpenedModel
from encore.model.scoring import score_sequences
from encore.serving.batch_queue import BatchQueue, TokenIds, stopping
from encore.serving.request_encoding import EncodedText, RequestEncoder
from encore.serving.reward_requests import (
    AnyRequest,
    Refusal,
    RewardRequest,
    ScoreRequest,
    read_request,
)
from encore.serving.serve_config import ServeLimits
from encore.weighting.vector import reward_weights

# Legend: N texts, R rules.

_log = logging.getLogger(__name__)

Found = TypeVar("Found")

#: Clients of OpenRLHF are given a whole URL; both of these are in use.
REWARD_PATHS: Final = ("/get_reward", "/")
#: Time for a request's body to arrive.
BODY_SECONDS: Final = 10.0
#: Bodies of the largest size that may be held at one time.
_HELD_BODIES: Final = 16
#: Texts that are tokenized in one call, so that requests take turns.
_TEXTS_AT_ONCE: Final = 8
#: Status of a request whose client went away, as web servers log it.
_NO_ANSWER: Final = 499
_SHOWN_CHARACTERS: Final = 80
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class RewardApp:
    """The ASGI application of one model.

    Every request has one log line and one count: path, status, sizes, time; never a client's text.

    Args:
        opened: The model.
        composition: What its heads weigh in a reward.
        limits: What a client may ask for.
        on_ready: Called when requests are about to be answered.
    """

    def __init__(
        self,
        opened: OpenedModel,
        *,
        composition: Composition,
        limits: ServeLimits,
        on_ready: Callable[[], None],
    ) -> None:
        self._opened = opened
        self._composition = composition
        self._head_ids = opened.model.head_ids
        self._weight_R = reward_weights(composition.weights, head_ids=self._head_ids)
        self._mean_R = np.array(opened.model.mean_R.tolist())
        self._limits = limits
        self._on_ready = on_ready
        num_embeddings = opened.model.trunk.get_input_embeddings().weight.shape[0]
        self._encoder = RequestEncoder(opened.tokenizer, num_embeddings=num_embeddings)
        self._queue = BatchQueue(
            self._score_batch,
            max_batch_tokens=limits.max_batch_tokens,
            max_queue_tokens=limits.queue_tokens,
        )
        self._num_held_bytes = 0
        #: Parses bodies and tokenizes texts, off the event loop.
        self._thread = ThreadPoolExecutor(1, "encore-encode")
        self._count()
        routes = [
            *(Route(path, self._rewards, methods=["POST"]) for path in REWARD_PATHS),
            Route("/score", self._explanations, methods=["POST"]),
            Route("/health", self._health, methods=["GET"]),
            Route("/model", self._about, methods=["GET"]),
            Route("/metrics", self._counters, methods=["GET"]),
        ]
        self._paths = frozenset(route.path for route in routes)
        errors = (Refusal, HTTPException, ClientDisconnect, Exception)
        self._app = Starlette(
            routes=routes,
            lifespan=self._run_queue,
            exception_handlers=dict.fromkeys(errors, _answer_error),
        )
        self._app.router.redirect_slashes = False

    def _count(self) -> None:
        """Make the counters, in a registry of this server's own."""
        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self._registry}
        self._requests = Counter("encore_requests", "Answered.", ["path", "status"], **own)
        self._seconds = Histogram("encore_request_seconds", "Until an answer.", ["path"], **own)
        self._texts = Counter("encore_texts", "Texts scored.", **own)
        self._tokens = Counter("encore_tokens", "Tokens scored.", **own)
        self._cut = Counter("encore_cut_texts", "Texts that lost their oldest tokens.", **own)
        self._batch_texts = Histogram(
            "encore_batch_texts", "Texts computed together.", buckets=_BATCH_SIZES, **own
        )
        self._batch_seconds = Histogram("encore_batch_seconds", "Time of a batch.", **own)
        waiting = {
            "encore_queued_texts": lambda: self._queue.num_texts,
            "encore_queued_tokens": lambda: self._queue.num_tokens,
        }
        for name, count in waiting.items():
            Gauge(name, "That wait.", **own).set_function(count)

    @contextlib.asynccontextmanager
    async def _run_queue(self, _app: Starlette) -> AsyncIterator[None]:
        scoring = asyncio.create_task(self._queue.run())
        self._on_ready()
        yield
        scoring.cancel()
        await asyncio.wait([scoring])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, count it and log it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), _NO_ANSWER

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note_status)
        finally:  # a path or method that is not known is a client's text too
            path = scope["path"] if scope["path"] in self._paths else "other"
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
            seconds = time.perf_counter() - started
            self._requests.labels(path, str(status)).inc()
            self._seconds.labels(path).observe(seconds)
            sizes = [scope["state"].get(name, 0) for name in ("num_texts", "num_tokens")]
            line = "%s %s: %d, %d texts, %d tokens, %.0f ms"
            _log.info(line, method, path, status, *sizes, 1000 * seconds)

    # --- endpoints --------------------------------------------------------------------------------

    async def _rewards(self, request: Request) -> Response:
        """OpenRLHF's answer: ``scores``, by which its clients filter, are the ``rewards``.

        ``extra_logs`` has every rule's score on the scale of its ratings.
        """
        asked = await self._read(request, RewardRequest)
        _, score_NR = await self._scored(request, asked.query, self._encoder.encode_queries)
        rewards = (score_NR @ self._weight_R).tolist()
        shown_RN = (score_NR + self._mean_R).T.tolist()
        logged = dict(zip(self._head_ids, shown_RN, strict=True))
        return JSONResponse({"rewards": rewards, "scores": rewards, "extra_logs": logged})

    async def _explanations(self, request: Request) -> Response:
        """Every conversation's reward and what each rule contributes to it."""
        asked = await self._read(request, ScoreRequest)
        texts, score_NR = await self._scored(
            request, asked.conversations, self._encoder.encode_conversations
        )
        results = [
            {**self._explain(score_R), "num_tokens": len(token_ids), "num_cut": num_cut}
            for (token_ids, num_cut), score_R in zip(texts, score_NR, strict=True)
        ]
        return JSONResponse(
            {"model": self._opened.name, "digest": self._opened.digest, "results": results}
        )

    def _explain(self, score_R: NDArray[np.float64]) -> dict[str, Any]:
        """A text's reward and its parts; a number for people has the rules' means added back."""
        reward = float(self._weight_R @ score_R)
        return {
            "reward": reward,
            "reward_shown": reward + float(self._weight_R @ self._mean_R),
            "rules": _rows(
                rule_id=self._head_ids,
                score=(score_R + self._mean_R).tolist(),
                centred_score=score_R.tolist(),
                weight=self._weight_R.tolist(),
                contribution=(self._weight_R * score_R).tolist(),
            ),
        }

    async def _health(self, _request: Request) -> Response:
        """Whether texts are being scored."""
        if not self._queue.is_alive:
            reason = "this server stops, its worker has ended, or batch after batch fails"
            raise Refusal(503, f"{reason}: start it again")
        return JSONResponse({"status": "ok", "queued_texts": self._queue.num_texts})

    async def _about(self, _request: Request) -> Response:
        """Which model this is, what its heads weigh, what a client may ask for."""
        weights, means = self._weight_R.tolist(), self._mean_R.tolist()
        origin = ("scheme", "params", "provenance")
        return JSONResponse(
            {
                "model": self._opened.name,
                "digest": self._opened.digest,
                "head_ids": list(self._head_ids),
                "rules": _rows(rule_id=self._head_ids, weight=weights, mean=means),
                "reward_mean": float(self._weight_R @ self._mean_R),
                "weights": {name: getattr(self._composition, name) for name in origin},
                "max_length": self._opened.tokenizer.max_length,
                "template_sha256": self._opened.tokenizer.template_sha256,
                "limits": self._limits.model_dump(include={"max_queries", "max_request_bytes"}),
            }
        )

    async def _counters(self, _request: Request) -> Response:
        """The counters as Prometheus reads them."""
        text = generate_latest(self._registry)
        return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    # --- a request's way --------------------------------------------------------------------------

    async def _read(self, request: Request, kind: type[AnyRequest]) -> AnyRequest:
        """The request in a body.

        What is refused for its size is not read on: the connection throws the rest away, so a
        client that sends first and listens later gets the reason.
        """
        # JSON only: a web page can make a browser send other types anywhere without asking first.
        content_type = request.headers.get("content-type", "")
        if content_type.partition(";")[0].strip().lower() != "application/json":
            raise Refusal(415, "expected content-type application/json and a body of JSON")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refusal(415, "expected a body without content-encoding")
        self._check_size(int(request.headers.get("content-length", "0")))
        body = bytearray()
        try:
            async with _until_stopped(), asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    body += chunk
                    self._num_held_bytes += len(chunk)
                    self._check_size(len(body))
                    if self._num_held_bytes > _HELD_BODIES * self._limits.max_request_bytes:
                        reason = "too many requests are being read at this moment; send it again"
                        raise Refusal(503, reason, retry_after="1")
            max_texts = self._limits.max_queries
            return await self._in_thread(
                partial(read_request, bytes(body), kind, max_texts=max_texts)
            )
        except TimeoutError:
            reason = f"the body did not arrive within {BODY_SECONDS:g} s ({len(body)} bytes did)"
            raise Refusal(408, reason, connection="close") from None
        finally:
            self._num_held_bytes -= len(body)

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self._limits.max_request_bytes:
            raise Refusal(
                413,
                f"a body of {num_bytes} bytes or more, expected at most "
                f"{self._limits.max_request_bytes}: send several requests, or start the server "
                "with a larger --max-request-bytes",
            )

    async def _scored(
        self,
        request: Request,
        asked: Sequence[Any],
        encode: Callable[[Sequence[Any], int], list[EncodedText]],
    ) -> tuple[list[EncodedText], NDArray[np.float64]]:
        """A request's texts as token ids, and their centred scores [N, R].

        If the client goes away first, what still waits is not computed.
        """
        texts: list[EncodedText] = []
        async with _until_stopped():
            for first in range(0, len(asked), _TEXTS_AT_ONCE):
                some = asked[first : first + _TEXTS_AT_ONCE]
                texts += await self._in_thread(partial(encode, some, first))
            request.state.num_texts = len(texts)
            request.state.num_tokens = sum(len(token_ids) for token_ids, _ in texts)
            both: list[asyncio.Future[Any]] = [
                asyncio.create_task(self._queue.score([ids for ids, _ in texts])),
                asyncio.ensure_future(request.receive()),  # after the body only the end can come
            ]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if not both[0].done():
                    raise ClientDisconnect
                score_NR = both[0].result().astype(np.float64)
            finally:
                for one in both:
                    one.cancel()
        if not np.isfinite(score_NR).all():
            raise Refusal(500, "the model's score of a text is not a finite number")
        self._cut.inc(sum(num_cut > 0 for _, num_cut in texts))
        return texts, score_NR

    async def _in_thread(self, work: Callable[[], Found]) -> Found:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _score_batch(self, sequences: Sequence[TokenIds]) -> NDArray[np.float32]:
        with self._batch_seconds.time():
            score_NR = score_sequences(
                self._opened.model,
                sequences,
                pad_token_id=self._opened.tokenizer.pad_token_id,
                tokens_per_microbatch=self._limits.max_batch_tokens,
            )
        self._texts.inc(len(sequences))
        self._tokens.inc(sum(map(len, sequences)))
        self._batch_texts.observe(len(sequences))
        return score_NR


def _rows(**columns: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


@contextlib.asynccontextmanager
async def _until_stopped() -> AsyncIterator[None]:
    """Answer in JSON when the server cancels a request, after its time to stop."""
    try:
        yield
    except asyncio.CancelledError:
        raise stopping() from None


async def _answer_error(request: Request, error: Exception) -> Response:
    """One line of JSON. Of an error that nobody expected the traceback goes into the log."""
    if isinstance(error, ClientDisconnect):  # nobody reads it; the status is for the log
        return Response(status_code=_NO_ANSWER)
    if isinstance(error, Refusal):
        status, reason, headers = error.status, error.reason, error.headers
    elif isinstance(error, HTTPException):
        # Not `request.url`: it depends on the client's Host header and loses characters.
        shown = ascii(f"{request.method} {request.scope['path']}"[:_SHOWN_CHARACTERS])
        expected = "POST /get_reward or /score, or GET /health, /metrics or /model"
        reason = f"{shown}: {error.detail.lower()}; expected {expected}"
        status, headers = error.status_code, dict(error.headers or {})
    else:
        reason = f"the server failed ({type(error).__name__}); see its log"
        status, headers = 500, {}
    return JSONResponse({"error": reason}, status_code=status, headers=headers)
