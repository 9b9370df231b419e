"""Web application of `encore serve`: read, encode, score and answer requests, and log them."""

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

from encore.core.errors import InputError
from encore.export.weights_input import Composition, chosen_weights, one_rule
from encore.model.conversation import EncodedResponse
from encore.model.layouts import TokenIds
from encore.model.open_model import OpenedModel, open_reward_model
from encore.model.score_sequences import score_sequences
from encore.serving.batch_queue import BatchQueue, stopping_error
from encore.serving.policy_template import PolicyTemplate, load_policy_template
from encore.serving.request_encoding import RequestEncoder
from encore.serving.reward_requests import RewardRequest, ScoreRequest, Texts, read_request
from encore.serving.serve_options import ServeConfig, ServeLimits
from encore.weighting.weight_vector import head_weights

# Legend: N texts, R rules.

_log = logging.getLogger(__name__)

#: Seconds within which a request's body must arrive.
BODY_SECONDS = 10.0
#: Number of bodies of the largest allowed size whose requests the server holds at one time.
_MAX_HELD_BODIES = 16
#: Texts that are tokenized in one call; between calls other requests get their turn.
_TEXTS_PER_CALL = 8
#: Status of a request whose client went away, as web servers log it.
_NO_ANSWER = 499
_EXPECTED = "expected POST /get_reward or /score, or GET /health, /metrics or /model"


class RewardApp:
    """ASGI application that serves one model.

    Every request is counted and logged in one line with path, status, sizes and time. A client's
    text is never logged.

    Args:
        opened: The reward model; also an attribute.
        composition: Weights of its heads; also an attribute.
        limits: Limits on the requests of clients.
        on_ready: Function that is called when the server is about to answer requests.
        policy: Template that rendered the texts of clients, if it is not the model's.
    """

    def __init__(
        self,
        opened: OpenedModel,
        *,
        composition: Composition,
        limits: ServeLimits,
        on_ready: Callable[[RewardApp], None],
        policy: PolicyTemplate | None = None,
    ) -> None:
        self.opened = opened
        self.composition = composition
        self._head_ids = opened.model.head_ids
        self._weight_R = head_weights(composition.weights, head_ids=self._head_ids)
        self._mean_R = np.array(opened.model.mean_R.tolist())
        self._limits = limits
        self._model_fields = {"model": opened.name, "digest": opened.digest}
        self._on_ready = on_ready
        num_embeddings = opened.model.trunk.get_input_embeddings().weight.shape[0]
        self._encoder = RequestEncoder(
            opened.tokenizer, num_embeddings=num_embeddings, policy=policy
        )
        self._queue = queue = BatchQueue(self._score_batch, limits=limits)
        self._num_held_bytes = 0
        #: One thread that parses bodies and tokenizes texts, off the event loop.
        self._thread = ThreadPoolExecutor(1, "encore-encode")
        self._registry = CollectorRegistry()
        registered: dict[str, Any] = {"registry": self._registry}
        self._requests = Counter(
            "encore_requests",
            "Requests answered, by path and status.",
            ["path", "status"],
            **registered,
        )
        self._seconds = Histogram(
            "encore_request_seconds",
            "Seconds from a request's arrival to its answer, by path.",
            ["path"],
            **registered,
        )
        self._texts = Counter("encore_texts", "Texts scored.", **registered)
        self._tokens = Counter("encore_tokens", "Tokens scored.", **registered)
        self._batch_seconds = Histogram(
            "encore_batch_seconds", "Seconds that the model takes for a batch.", **registered
        )
        queued_texts = Gauge("encore_queued_texts", "Texts waiting in the queue.", **registered)
        queued_texts.set_function(lambda: len(queue.texts))
        queued_tokens = Gauge("encore_queued_tokens", "Tokens waiting in the queue.", **registered)
        queued_tokens.set_function(lambda: queue.num_tokens)
        #: Clients of OpenRLHF are given a whole URL; URLs with and without a path are in use.
        posts = {"/get_reward": self._rewards, "/": self._rewards, "/score": self._explanations}
        gets = {"/health": self._health, "/model": self._model, "/metrics": self._metrics}
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

        async def send_and_keep_status(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, send_and_keep_status)
        finally:
            if scope["type"] == "http":
                self._num_held_bytes -= scope["state"].get("num_bytes", 0)
                # An unknown path is a client's text, which is not logged.
                path = scope["path"] if "endpoint" in scope else "other"
                seconds = time.perf_counter() - started
                self._requests.labels(path, status).inc()
                self._seconds.labels(path).observe(seconds)
                sizes = [scope["state"].get(name, 0) for name in ("num_texts", "num_tokens")]
                line = "%s %s: %d, %d texts, %d tokens, %.0f ms"
                _log.info(line, scope["method"], path, status, *sizes, 1000 * seconds)

    # --- endpoints --------------------------------------------------------------------------------

    async def _rewards(self, request: Request) -> Response:
        """Answer in OpenRLHF's form: rewards, and ``scores``, which are equal to them.

        Clients filter by ``scores``. ``extra_logs`` has every rule's score on the scale of its
        ratings.
        """
        _, score_NR = await self._scored(request, RewardRequest)
        rewards = (score_NR @ self._weight_R).tolist()
        rating_scale_RN = (score_NR + self._mean_R).T.tolist()
        scores_by_head = dict(zip(self._head_ids, rating_scale_RN, strict=True))
        return JSONResponse({"rewards": rewards, "scores": rewards, "extra_logs": scores_by_head})

    async def _explanations(self, request: Request) -> Response:
        """Answer with every conversation's reward and the contribution of each rule.

        ``reward_shown`` is for people: the means of the rules are added to the reward.
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
        return JSONResponse({**self._model_fields, "results": results})

    async def _health(self, _request: Request) -> Response:
        """Answer 200 if texts are being scored, else 503."""
        if not self._queue.is_alive:
            raise HTTPException(503, "the worker has ended, or batch after batch fails")
        return JSONResponse({"status": "ok", "queued_texts": len(self._queue.texts)})

    async def _model(self, _request: Request) -> Response:
        """Answer with the model's identity, its heads' weights and the limits on requests."""
        return JSONResponse(
            {
                **self._model_fields,
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
        """Answer with the counters in Prometheus' text format."""
        text = generate_latest(self._registry)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def _rules(self, **columns: NDArray[np.float64]) -> list[dict[str, Any]]:
        """Return one record per rule with the values of these columns, each of shape [R]."""
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [
            {"rule_id": head_id, **dict(zip(columns, row, strict=True))}
            for head_id, row in zip(self._head_ids, rows, strict=True)
        ]

    # --- from a request to its scores -------------------------------------------------------------

    async def _scored(
        self, request: Request, kind: type[RewardRequest | ScoreRequest]
    ) -> tuple[list[EncodedResponse], NDArray[np.float64]]:
        """Return the texts of a request as token ids, and their centred scores, shape [N, R].

        If the client disconnects, its waiting texts are not computed. If the server cancels the
        request because its time to stop is over, the answer is JSON too.
        """
        try:
            body, max_texts = await self._read(request), self._limits.max_queries
            received: Texts = await self._in_thread(read_request, body, kind, max_texts)
            texts: list[EncodedResponse] = []
            for first in range(0, len(received), _TEXTS_PER_CALL):
                batch = received[first : first + _TEXTS_PER_CALL]
                texts += await self._in_thread(self._encoder.encode, batch, first)
            request.state.num_texts = len(texts)
            sequences = [text.token_ids for text in texts]
            request.state.num_tokens = sum(map(len, sequences))
            futures: list[asyncio.Future[Any]] = [
                asyncio.create_task(self._queue.score(sequences)),
                # After the body, only a disconnect can arrive.
                asyncio.ensure_future(request.receive()),
            ]
            try:
                await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
                if not futures[0].done():
                    raise ClientDisconnect
                score_NR = futures[0].result().astype(np.float64)
            finally:
                for future in futures:
                    future.cancel()
        except asyncio.CancelledError:
            raise stopping_error() from None
        except ClientDisconnect:  # nobody reads this answer; its status is for the log
            raise HTTPException(_NO_ANSWER, "the client went away") from None
        if not np.isfinite(score_NR).all():
            raise HTTPException(500, "the model's score of a text is not a finite number")
        return texts, score_NR

    async def _read(self, request: Request) -> bytes:
        """Read the body of a request.

        A body that is too large is not read to its end. The connection discards the remaining
        bytes, so that a client which sends everything before it listens still gets the reason.
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
                    request.state.num_bytes = len(body)
                    if len(body) > largest:
                        reason = f"expected at most {largest} bytes: send several requests"
                        raise HTTPException(413, f"a body of {len(body)} bytes or more, {reason}")
                    if self._num_held_bytes > _MAX_HELD_BODIES * largest:
                        raise HTTPException(503, "too many requests at once", {"retry-after": "1"})
            return bytes(body)
        except TimeoutError:
            reason = f"the body did not arrive within {BODY_SECONDS:g} s ({len(body)} bytes did)"
            raise HTTPException(408, reason, {"connection": "close"}) from None

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


def open_app(config: ServeConfig, *, on_ready: Callable[[RewardApp], None]) -> RewardApp:
    """Load a model and return the application of `encore serve`. It logs requests on stderr.

    Args:
        config: Options of the server: model, weights, limits.
        on_ready: Function that is called when the server is about to answer requests.

    Raises:
        InputError: There is no such model or no such weights, or the model has several heads and
            no weights are given.
    """
    model_options = config.model_dump(include={"device", "dtype", "max_length", "revision"})
    opened = open_reward_model(config.model, **model_options)
    head_ids = opened.model.head_ids
    composition = chosen_weights(config.composition, head_ids=head_ids)
    if composition is None:
        if len(head_ids) > 1:
            raise InputError(
                f"the model has {len(head_ids)} heads and a reward is one number; give their "
                "weights: --weights FILE, as `encore weights --json` writes it, --rule or --scheme"
            )
        composition = one_rule(head_ids[0], head_ids=head_ids)
    policy = None
    if config.policy_tokenizer is not None:
        policy = load_policy_template(config.policy_tokenizer)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    for name in ("encore.serving", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.INFO)
    return RewardApp(
        opened, composition=composition, limits=config.limits, on_ready=on_ready, policy=policy
    )


async def _answer_error(_request: Request, error: Exception) -> Response:
    """Return an error as one line of JSON; an unexpected error's traceback goes to the log."""
    if not isinstance(error, HTTPException):
        error = HTTPException(500, f"the server failed ({type(error).__name__}); see its log")
    reason = f"{error.detail}; {_EXPECTED}" if error.status_code in (404, 405) else error.detail
    return JSONResponse({"error": reason}, error.status_code, error.headers)
