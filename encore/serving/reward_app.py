"""The reward server's paths: read a request, encode it, have it scored, answer; count and log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from encore.export.weights_input import Composition
from encore.model.conversation import EncodedResponse
from encore.model.layouts import TokenIds
from encore.model.opening import OpenedModel
from encore.model.score_sequences import score_sequences
from encore.serving.batch_queue import BatchQueue, stopping
from encore.serving.request_encoding import RequestEncoder
from encore.serving.reward_requests import RewardRequest, ScoreRequest, Texts, read_request
from encore.serving.serve_config import ServeLimits
from encore.weighting.weight_vector import head_weights

# Legend: N texts, R rules.

_log = logging.getLogger(__name__)

#: Time for a request's body to arrive.
BODY_SECONDS = 10.0
#: Bodies of the largest size that may be held at one time.
_HELD_BODIES = 16
#: Texts that are tokenized in one call, so that requests take turns.
_TEXTS_AT_ONCE = 8
#: Status of a request whose client went away, as web servers log it.
_NO_ANSWER = 499
_EXPECTED = "expected POST /get_reward or /score, or GET /health, /metrics or /model"


class RewardApp:
    """The ASGI application of one model.

    Every request has one log line and one count: path, status, sizes, time; never a client's text.

    Args:
        opened: The model; also an attribute.
        composition: What its heads weigh in a reward; also an attribute.
        limits: What a client may ask for.
        on_ready: Called when requests are about to be answered.
    """

    def __init__(
        self,
        opened: OpenedModel,
        *,
        composition: Composition,
        limits: ServeLimits,
        on_ready: Callable[[RewardApp], None],
    ) -> None:
        self.opened = opened
        self.composition = composition
        self._head_ids = opened.model.head_ids
        self._weight_R = head_weights(composition.weights, head_ids=self._head_ids)
        self._mean_R = np.array(opened.model.mean_R.tolist())
        self._limits = limits
        self._named = {"model": opened.name, "digest": opened.digest}
        self._on_ready = on_ready
        num_embeddings = opened.model.trunk.get_input_embeddings().weight.shape[0]
        self._encoder = RequestEncoder(opened.tokenizer, num_embeddings=num_embeddings)
        self._queue = queue = BatchQueue(self._score_batch, limits=limits)
        self._num_held_bytes = 0
        #: Parses bodies and tokenizes texts, off the event loop.
        self._thread = ThreadPoolExecutor(1, "encore-encode")
        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self._registry}
        self._requests = Counter("encore_requests", "Answered.", ["path", "status"], **own)
        self._seconds = Histogram("encore_request_seconds", "Until an answer.", ["path"], **own)
        self._texts = Counter("encore_texts", "Texts scored.", **own)
        self._tokens = Counter("encore_tokens", "Tokens scored.", **own)
        self._batch_seconds = Histogram("encore_batch_seconds", "Time of a batch.", **own)
        Gauge("encore_queued_texts", "That wait.", **own).set_function(lambda: len(queue.texts))
        Gauge("encore_queued_tokens", "That wait.", **own).set_function(lambda: queue.num_tokens)
        #: Clients of OpenRLHF are given a whole URL; with and without a path are both in use.
        posts = {"/get_reward": self._rewards, "/": self._rewards, "/score": self._explanations}
        gets = {"/health": self._health, "/model": self._about, "/metrics": self._metrics}
        self._app = Starlette(
            routes=[
                *(Route(path, answer, methods=["POST"]) for path, answer in posts.items()),
                *(Route(path, answer, methods=["GET"]) for path, answer in gets.items()),
            ],
            lifespan=self._run_queue,
            exception_handlers=dict.fromkeys((HTTPException, Exception), _answer_error),
        )
        self._app.router.redirect_slashes = False

    @contextlib.asynccontextmanager
    async def _run_queue(self, _app: Starlette) -> AsyncIterator[None]:
        scoring = asyncio.create_task(self._queue.run())
        self._on_ready(self)
        yield
        scoring.cancel()
        await asyncio.wait([scoring])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, count it and log it."""
        started, status = time.perf_counter(), _NO_ANSWER

        async def note_status(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, note_status)
        finally:
            if scope["type"] == "http":
                # A path that is not known is a client's text too.
                path = scope["path"] if "endpoint" in scope else "other"
                seconds = time.perf_counter() - started
                self._requests.labels(path, status).inc()
                self._seconds.labels(path).observe(seconds)
                sizes = [scope["state"].get(name, 0) for name in ("num_texts", "num_tokens")]
                line = "%s %s: %d, %d texts, %d tokens, %.0f ms"
                _log.info(line, scope["method"], path, status, *sizes, 1000 * seconds)

    # --- endpoints --------------------------------------------------------------------------------

    async def _rewards(self, request: Request) -> Response:
        """OpenRLHF's answer: ``scores``, by which its clients filter, are the ``rewards``.

        ``extra_logs`` has every rule's score on the scale of its ratings.
        """
        _, score_NR = await self._scored(request, RewardRequest)
        rewards = (score_NR @ self._weight_R).tolist()
        shown_RN = (score_NR + self._mean_R).T.tolist()
        logged = dict(zip(self._head_ids, shown_RN, strict=True))
        return JSONResponse({"rewards": rewards, "scores": rewards, "extra_logs": logged})

    async def _explanations(self, request: Request) -> Response:
        """Every conversation's reward and what each rule contributes to it.

        A number for people, ``reward_shown``, has the rules' means added back.
        """
        texts, score_NR = await self._scored(request, ScoreRequest)
        reward_mean = float(self._weight_R @ self._mean_R)
        results = [
            {
                "reward": (reward := float(self._weight_R @ score_R)),
                "reward_shown": reward + reward_mean,
                "rules": self._rules(
                    score=score_R + self._mean_R,
                    centred_score=score_R,
                    weight=self._weight_R,
                    contribution=self._weight_R * score_R,
                ),
                "num_tokens": len(text.token_ids),
                "num_cut": text.num_cut,
            }
            for text, score_R in zip(texts, score_NR, strict=True)
        ]
        return JSONResponse({**self._named, "results": results})

    async def _health(self, _request: Request) -> Response:
        """Whether texts are being scored."""
        if not self._queue.is_alive:
            raise HTTPException(503, "the worker has ended, or batch after batch fails")
        return JSONResponse({"status": "ok", "queued_texts": len(self._queue.texts)})

    async def _about(self, _request: Request) -> Response:
        """Which model this is, what its heads weigh, what a client may ask for."""
        return JSONResponse(
            {
                **self._named,
                "head_ids": list(self._head_ids),
                "rules": self._rules(weight=self._weight_R, mean=self._mean_R),
                "reward_mean": float(self._weight_R @ self._mean_R),
                "weights": self.composition.model_dump(include={"scheme", "params", "provenance"}),
                "max_length": self.opened.tokenizer.max_length,
                "template_sha256": self.opened.tokenizer.template_sha256,
                "limits": self._limits.model_dump(include={"max_queries", "max_request_bytes"}),
            }
        )

    async def _metrics(self, _request: Request) -> Response:
        """The counters as Prometheus reads them."""
        text = generate_latest(self._registry)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def _rules(self, **columns: NDArray[np.float64]) -> list[dict[str, Any]]:
        """A record a rule."""
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [
            {"rule_id": head_id, **dict(zip(columns, row, strict=True))}
            for head_id, row in zip(self._head_ids, rows, strict=True)
        ]

    # --- a request's way --------------------------------------------------------------------------

    async def _scored(
        self, request: Request, kind: type[RewardRequest | ScoreRequest]
    ) -> tuple[list[EncodedResponse], NDArray[np.float64]]:
        """A request's texts as token ids, and their centred scores [N, R].

        If the client goes away first, what still waits is not computed. If the server cancels the
        request, after its time to stop, the answer is JSON too.
        """
        try:
            body, max_texts = await self._read(request), self._limits.max_queries
            asked: Texts = await self._in_thread(read_request, body, kind, max_texts)
            texts: list[EncodedResponse] = []
            for first in range(0, len(asked), _TEXTS_AT_ONCE):
                some = asked[first : first + _TEXTS_AT_ONCE]
                texts += await self._in_thread(self._encoder.encode, some, first)
            request.state.num_texts = len(texts)
            sequences = [text.token_ids for text in texts]
            request.state.num_tokens = sum(map(len, sequences))
            both: list[asyncio.Future[Any]] = [
                asyncio.create_task(self._queue.score(sequences)),
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
        except asyncio.CancelledError:
            raise stopping() from None
        except ClientDisconnect:  # nobody reads it; the status is for the log
            raise HTTPException(_NO_ANSWER, "the client went away") from None
        if not np.isfinite(score_NR).all():
            raise HTTPException(500, "the model's score of a text is not a finite number")
        return texts, score_NR

    async def _read(self, request: Request) -> bytes:
        """A request's body.

        What is refused for its size is not read on: the connection throws the rest away, so a
        client that sends first and listens later gets the reason.
        """
        # JSON only: a web page can make a browser send other types anywhere without asking first.
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_encoded = request.headers.get("content-encoding", "identity").lower() != "identity"
        if content_type != "application/json" or is_encoded:
            raise HTTPException(415, "expected content-type application/json, no content-encoding")
        body, largest = bytearray(), self._limits.max_request_bytes
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    body += chunk
                    self._num_held_bytes += len(chunk)
                    if len(body) > largest:
                        reason = f"expected at most {largest} bytes: send several requests"
                        raise HTTPException(413, f"a body of {len(body)} bytes or more, {reason}")
                    if self._num_held_bytes > _HELD_BODIES * largest:
                        raise HTTPException(503, "too many requests at once", {"retry-after": "1"})
            return bytes(body)
        except TimeoutError:
            reason = f"the body did not arrive within {BODY_SECONDS:g} s ({len(body)} bytes did)"
            raise HTTPException(408, reason, {"connection": "close"}) from None
        finally:
            self._num_held_bytes -= len(body)

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _score_batch(self, sequences: Sequence[TokenIds]) -> NDArray[np.float32]:
        with self._batch_seconds.time():
            score_NR = score_sequences(
                self.opened.model,
                sequences,
                pad_token_id=self.opened.tokenizer.pad_token_id,
                tokens_per_microbatch=self._limits.max_batch_tokens,
            )
        self._texts.inc(len(sequences))
        self._tokens.inc(sum(map(len, sequences)))
        return score_NR


async def _answer_error(_request: Request, error: Exception) -> Response:
    """One line of JSON. Of an error that nobody expected the traceback goes into the log."""
    if not isinstance(error, HTTPException):
        error = HTTPException(500, f"the server failed ({type(error).__name__}); see its log")
    reason = f"{error.detail}; {_EXPECTED}" if error.status_code in (404, 405) else error.detail
    return JSONResponse({"error": reason}, error.status_code, error.headers)
