"""The reward server's paths: read a request, encode it, have it scored, answer; count and log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
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
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from encore.model.opening import OpenedModel
from encore.serving.batch_queue import STOPPING, BatchQueue
from encore.serving.composer import Composed, Composer
from encore.serving.request_encoding import EncodedText, RequestEncoder
from encore.serving.reward_requests import (
    AnyRequest,
    Refusal,
    RewardRequest,
    ScoreRequest,
    read_request,
)
from encore.serving.serve_config import ServeLimits

_log = logging.getLogger(__name__)

Found = TypeVar("Found")

#: Clients of OpenRLHF are given a whole URL; both of these are in use.
REWARD_PATHS: Final = ("/get_reward", "/")
#: Time for a request's body to arrive.
BODY_SECONDS: Final = 10.0
#: Bodies of the largest size that may be held at one time.
_HELD_BODIES: Final = 16
#: Status of a request whose client went away, as web servers log it.
_NO_ANSWER: Final = 499
_SHOWN_CHARACTERS: Final = 80
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class ServerMetrics:
    """One server's counters, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "encore_requests", "Requests answered.", ["path", "status"], registry=registry
        )
        self.seconds = Histogram(
            "encore_request_seconds",
            "From a request's first line to its answer.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.texts = Counter("encore_texts", "Texts scored.", registry=registry)
        self.tokens = Counter("encore_tokens", "Tokens scored.", registry=registry)
        self.cut = Counter(
            "encore_cut_texts", "Texts accepted that lost their oldest tokens.", registry=registry
        )
        self.batch_texts = Histogram(
            "encore_batch_texts", "Texts computed together.", buckets=_TEXTS, registry=registry
        )
        self.batch_seconds = Histogram(
            "encore_batch_seconds", "Time of a batch.", buckets=_SECONDS, registry=registry
        )

    def watch_queue(self, queue: BatchQueue) -> None:
        """Show what waits at the moment of asking."""
        texts = Gauge("encore_queued_texts", "Texts that wait.", registry=self.registry)
        tokens = Gauge("encore_queued_tokens", "Tokens that wait.", registry=self.registry)
        texts.set_function(lambda: queue.num_texts)
        tokens.set_function(lambda: queue.num_tokens)

    def count_batch(self, num_texts: int, num_tokens: int, seconds: float) -> None:
        """Count one batch that was scored."""
        self.texts.inc(num_texts)
        self.tokens.inc(num_tokens)
        self.batch_texts.observe(num_texts)
        self.batch_seconds.observe(seconds)


@dataclass(slots=True, kw_only=True, eq=False)
class RewardService:
    """The endpoints of one model.

    Attributes:
        opened: The model.
        composer: How its heads become a reward.
        queue: Where texts are scored.
        encoder: The model's tokenizer for requests.
        metrics: Where texts are counted.
        limits: What a client may ask for.
    """

    opened: OpenedModel
    composer: Composer
    queue: BatchQueue
    encoder: RequestEncoder
    metrics: ServerMetrics
    limits: ServeLimits
    _num_held_bytes: int = field(init=False, default=0)
    #: Parses bodies and tokenizes texts, off the event loop.
    _thread: ThreadPoolExecutor = field(
        init=False,
        default_factory=partial(ThreadPoolExecutor, 1, "encore-encode"),
    )

    async def rewards(self, request: Request) -> Response:
        """OpenRLHF's answer: ``scores``, by which its clients filter, are the ``rewards``.

        ``extra_logs`` has every rule's score on the scale of its ratings.
        """
        _, composed = await self._answer(request, RewardRequest, self.encoder.encode_queries)
        rewards = composed.reward_N.tolist()
        logged = zip(self.composer.head_ids, composed.shown_NR.T.tolist(), strict=True)
        return JSONResponse({"rewards": rewards, "scores": rewards, "extra_logs": dict(logged)})

    async def scores(self, request: Request) -> Response:
        """Every conversation's reward and what each rule contributes to it."""
        encode = self.encoder.encode_conversations
        texts, composed = await self._answer(request, ScoreRequest, encode)
        results = [
            {
                "reward": float(composed.reward_N[row]),
                "reward_shown": float(composed.reward_shown_N[row]),
                "rules": self._rules(composed, row),
                "num_tokens": len(text.token_ids),
                "num_cut": text.num_cut,
            }
            for row, text in enumerate(texts)
        ]
        return JSONResponse(
            {"model": self.opened.name, "digest": self.opened.digest, "results": results}
        )

    async def health(self, _request: Request) -> Response:
        """Whether texts are being scored."""
        if not self.queue.is_alive:
            raise Refusal(
                503,
                "this server stops, its worker has ended, or batch after batch fails: start it "
                "again",
            )
        return JSONResponse({"status": "ok", "queued_texts": self.queue.num_texts})

    async def about(self, _request: Request) -> Response:
        """Which model this is, what its heads weigh, what a client may ask for."""
        tokenizer, composer = self.opened.tokenizer, self.composer
        rules = zip(
            composer.head_ids, composer.weight_R.tolist(), composer.mean_R.tolist(), strict=True
        )
        return JSONResponse(
            {
                "model": self.opened.name,
                "digest": self.opened.digest,
                "head_ids": list(composer.head_ids),
                "rules": [
                    {"rule_id": rule_id, "weight": weight, "mean": mean}
                    for rule_id, weight, mean in rules
                ],
                "reward_mean": composer.reward_mean,
                "weights": dict(composer.origin),
                "max_length": tokenizer.max_length,
                "template_sha256": tokenizer.template_sha256,
                "limits": {
                    "max_queries": self.limits.max_queries,
                    "max_request_bytes": self.limits.max_request_bytes,
                },
            }
        )

    async def counters(self, _request: Request) -> Response:
        """The counters as Prometheus reads them."""
        text = generate_latest(self.metrics.registry)
        return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    async def _answer(
        self,
        request: Request,
        kind: type[AnyRequest],
        encode: Callable[[AnyRequest, int], list[EncodedText]],
    ) -> tuple[list[EncodedText], Composed]:
        texts: list[EncodedText] = []
        try:
            async with self._body(request) as body:
                read = partial(read_request, body, kind, max_texts=self.limits.max_queries)
                asked = await self._in_thread(read)
                while more := await self._in_thread(partial(encode, asked, len(texts))):
                    texts += more
            request.state.num_texts = len(texts)
            request.state.num_tokens = sum(len(text.token_ids) for text in texts)
            scoring = self.queue.score([text.token_ids for text in texts])
            score_NR = await _unless_gone(request, scoring)
        except asyncio.CancelledError:  # by the server, after its time to stop
            raise Refusal(503, STOPPING, closes=True) from None
        if not np.isfinite(score_NR).all():
            raise Refusal(500, "the model's score of a text is not a finite number")
        self.metrics.cut.inc(sum(text.num_cut > 0 for text in texts))
        return texts, self.composer.compose(score_NR)

    async def _in_thread(self, work: Callable[[], Found]) -> Found:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @contextlib.asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """A request's body; its bytes count as held inside the context.

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
            await self._collect(request, body)
            yield bytes(body)
        finally:
            self._num_held_bytes -= len(body)

    async def _collect(self, request: Request, body: bytearray) -> None:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    body += chunk
                    self._num_held_bytes += len(chunk)
                    self._check_size(len(body))
                    if self._num_held_bytes > _HELD_BODIES * self.limits.max_request_bytes:
                        reason = "too many requests are being read at this moment; send it again"
                        raise Refusal(503, reason, retry_after_seconds=1)
        except TimeoutError:
            reason = f"the body did not arrive within {BODY_SECONDS:g} s ({len(body)} bytes did)"
            raise Refusal(408, reason, closes=True) from None

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self.limits.max_request_bytes:
            raise Refusal(
                413,
                f"a body of {num_bytes} bytes or more, expected at most "
                f"{self.limits.max_request_bytes}: send several requests, or start the server "
                "with a larger --max-request-bytes",
            )

    def _rules(self, composed: Composed, row: int) -> list[dict[str, Any]]:
        names = ("rule_id", "score", "centred_score", "weight", "contribution")
        columns = zip(
            self.composer.head_ids,
            composed.shown_NR[row].tolist(),
            composed.centred_NR[row].tolist(),
            self.composer.weight_R.tolist(),
            composed.contribution_NR[row].tolist(),
            strict=True,
        )
        return [dict(zip(names, values, strict=True)) for values in columns]


async def _unless_gone(
    request: Request, scoring: Coroutine[Any, Any, NDArray[np.float32]]
) -> NDArray[np.float32]:
    """The scores, unless the client goes away first: then what still waits is not computed."""
    work = asyncio.ensure_future(scoring)
    gone = asyncio.ensure_future(request.receive())  # after the body only this can come
    try:
        either: list[asyncio.Future[Any]] = [work, gone]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        work.cancel()
        gone.cancel()


def make_app(
    service: RewardService, *, metrics: ServerMetrics, lifespan: Lifespan[Starlette]
) -> ASGIApp:
    """The ASGI application of a service."""
    routes = [
        *(Route(path, service.rewards, methods=["POST"]) for path in REWARD_PATHS),
        Route("/score", service.scores, methods=["POST"]),
        Route("/health", service.health, methods=["GET"]),
        Route("/model", service.about, methods=["GET"]),
        Route("/metrics", service.counters, methods=["GET"]),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={
            Refusal: _refuse,
            HTTPException: _refuse_path,
            ClientDisconnect: _note_disconnect,
            Exception: _report_failure,
        },
    )
    app.router.redirect_slashes = False
    return _observed(app, metrics=metrics, paths=frozenset(route.path for route in routes))


async def _refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return JSONResponse({"error": error.reason}, status_code=error.status, headers=error.headers)


async def _refuse_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    # Not `request.url`: it depends on the client's Host header and loses characters.
    shown = ascii(f"{request.method} {request.scope['path']}"[:_SHOWN_CHARACTERS])
    reason = f"{shown}: {error.detail.lower()}; expected POST /get_reward or /score, or GET "
    return JSONResponse(
        {"error": reason + "/health, /metrics or /model"},
        status_code=error.status_code,
        headers=error.headers,
    )


async def _note_disconnect(_request: Request, _error: Exception) -> Response:
    """Nobody reads it; the status is for the log."""
    return Response(status_code=_NO_ANSWER)


async def _report_failure(_request: Request, error: Exception) -> Response:
    """The client gets the kind of error alone; the traceback goes into the log."""
    return JSONResponse(
        {"error": f"the server failed ({type(error).__name__}); see its log"}, status_code=500
    )


def _observed(app: ASGIApp, *, metrics: ServerMetrics, paths: frozenset[str]) -> ASGIApp:
    """One log line and one count a request: path, status, sizes, time; never a client's text.

    All paths that are not known count as one, since a path is a client's text too.
    """

    async def observed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        started, status = time.perf_counter(), _NO_ANSWER

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await app(scope, receive, note_status)
        finally:
            path = scope["path"] if scope["path"] in paths else "other"
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
            seconds = time.perf_counter() - started
            metrics.requests.labels(path, str(status)).inc()
            metrics.seconds.labels(path).observe(seconds)
            state = scope["state"]
            sizes = (state.get("num_texts", 0), state.get("num_tokens", 0))
            _log.info(
                "%s %s: %d, %d texts, %d tokens, %.0f ms",
                *(method, path, status, *sizes, 1000 * seconds),
            )

    return observed
