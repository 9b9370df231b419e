"""Web application of `encore serve`: read, encode, score and answer requests, and log them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from encore.exports.weights_input import Composition
from encore.model.layouts import TokenIds
from encore.model.open_model import OpenedModel
from encore.model.score_sequences import score_sequences
from encore.serving.batch_queue import BatchQueue, stopping_error
from encore.serving.composed_rewards import RewardComposer
from encore.serving.conversation_answers import CONVERSATION_SHAPES
from encore.serving.held_out_scale import HeldOutScale
from encore.serving.host_guard import HostGuard, host_names
from encore.serving.policy_template import PolicyTemplate
from encore.serving.request_encoding import EncodedText, RequestEncoder
from encore.serving.reward_requests import RequestError, Texts, read_request
from encore.serving.scored_texts import ScoredTexts, TextReward
from encore.serving.serve_options import RuleUse, ServeLimits
from encore.serving.server_metrics import ServerMetrics
from encore.serving.trainer_requests import PLAIN_SHAPES, TEXT_SHAPES
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
_EXPECTED = "expected POST /get_reward, /score or /guard, or GET /health, /metrics or /model"
#: Kinds of errors that have no kind of their own, by status.
_KINDS = {
    404: "unknown_path",
    405: "unknown_path",
    408: "slow_body",
    413: "too_large",
    415: "media_type",
    _NO_ANSWER: "client_gone",
    500: "failed",
    503: "no_room",
}


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
        use: Rules that are left out of rewards or only watched.
        threshold: Lowest reward that is safe; None: each request of `POST /guard` names it.
        hosts: Names by which clients may call the server (`encore.serving.host_guard`).
    """

    def __init__(
        self,
        opened: OpenedModel,
        *,
        composition: Composition,
        limits: ServeLimits,
        on_ready: Callable[[RewardApp], None],
        policy: PolicyTemplate | None = None,
        use: RuleUse | None = None,
        threshold: float | None = None,
        hosts: frozenset[str] = host_names("127.0.0.1"),
    ) -> None:
        self.opened = opened
        self.composition = composition
        self._head_ids = opened.model.head_ids
        self._composer = RewardComposer(
            head_ids=self._head_ids,
            mean_R=np.array(opened.model.mean_R.tolist()),
            weight_R=head_weights(composition.weights, head_ids=self._head_ids),
            use=use or RuleUse(),
        )
        self._threshold = threshold
        self._scale = HeldOutScale(opened.held_out, head_ids=self._head_ids)
        self._limits = limits
        self._model_fields = {"model": opened.name, "digest": opened.digest}
        self._on_ready = on_ready
        num_embeddings = opened.model.trunk.get_input_embeddings().weight.shape[0]
        self._encoder = RequestEncoder(
            opened.tokenizer, num_embeddings=num_embeddings, policy=policy
        )
        self._queue = BatchQueue(self._score_batch, limits=limits)
        self._num_held_bytes = 0
        #: One thread that parses bodies and tokenizes texts, off the event loop.
        self._thread = ThreadPoolExecutor(1, "encore-encode")
        self._metrics = ServerMetrics(
            self._queue, head_ids=self._head_ids, mean_R=self._composer.mean_R, scale=self._scale
        )
        self._app = HostGuard(self._routes(), names=hosts)

    def _routes(self) -> Starlette:
        """Return the application that answers every path."""
        shapes = CONVERSATION_SHAPES | TEXT_SHAPES
        posts: dict[str, Callable[[Request], Any]] = {
            **{path: partial(self._text_answer, *shape) for path, shape in shapes.items()},
            **{path: partial(self._plain_answer, *shape) for path, shape in PLAIN_SHAPES.items()},
        }
        gets = {
            "/health": self._health,
            "/model": self._model,
            "/metrics": self._metrics_text,
            "/reverify_mode": self._reverify_mode,
        }
        routes = Starlette(
            routes=[
                *(Route(path, answer, methods=["POST"]) for path, answer in posts.items()),
                *(Route(path, answer, methods=["GET"]) for path, answer in gets.items()),
            ],
            lifespan=self._run_queue,
            exception_handlers=dict.fromkeys((HTTPException, Exception), self._answer_error),
        )
        routes.router.redirect_slashes = False
        return routes

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
                self._metrics.requests.labels(path, status).inc()
                self._metrics.seconds.labels(path).observe(seconds)
                sizes = [scope["state"].get(name, 0) for name in ("num_texts", "num_tokens")]
                line = "%s %s: %d, %d texts, %d tokens, %.0f ms"
                _log.info(line, scope["method"], path, status, *sizes, 1000 * seconds)

    # --- endpoints --------------------------------------------------------------------------------

    async def _text_answer(
        self, kind: type[Any], answer: Callable[..., Any], request: Request
    ) -> Response:
        """Answer a request whose texts are scored, in its shape."""
        record, texts = await self._scored(request, kind)
        scored = ScoredTexts(
            texts=texts,
            composer=self._composer,
            model_fields=self._model_fields,
            threshold=self._threshold,
            scale=self._scale,
        )
        return JSONResponse(answer(record, scored))

    async def _plain_answer(
        self, kind: type[Any], answer: Callable[..., Any], request: Request
    ) -> Response:
        """Answer a request that has no texts to score."""
        body = await self._read(request)
        return JSONResponse(answer(await self._in_thread(read_request, body, kind, 0)))

    async def _health(self, _request: Request) -> Response:
        """Answer 200 if texts are being scored, else 503."""
        if not self._queue.is_alive:
            raise HTTPException(503, "the worker has ended, or batch after batch fails")
        return JSONResponse({"status": "ok", "queued_texts": len(self._queue.texts)})

    async def _model(self, _request: Request) -> Response:
        """Answer with the model's identity, its heads' weights and the limits on requests."""
        composer = self._composer
        return JSONResponse(
            {
                **self._model_fields,
                "head_ids": list(self._head_ids),
                "rules": composer.rule_records(
                    weight=composer.weight_R,
                    mean=composer.mean_R,
                    is_watched=np.isin(self._head_ids, composer.use.watch),
                ),
                "reward_mean": float(composer.weight_R @ composer.mean_R),
                "drop_rules": composer.use.drop_rules,
                "weights": self.composition.model_dump(include={"scheme", "params", "provenance"}),
                "max_length": self.opened.tokenizer.max_length,
                "template_sha256": self.opened.tokenizer.template_sha256,
                "limits": self._limits.model_dump(include={"max_queries", "max_request_bytes"}),
            }
        )

    async def _metrics_text(self, _request: Request) -> Response:
        """Answer with the counters in Prometheus' text format."""
        text = self._metrics.as_text()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _reverify_mode(self, _request: Request) -> Response:
        """Answer NeMo Gym that a rollout can be scored again at any time."""
        return JSONResponse("stateless")

    async def _answer_error(self, _request: Request, error: Exception) -> Response:
        """Return an error as one line of JSON; an unexpected one's traceback goes to the log."""
        if not isinstance(error, HTTPException):
            error = HTTPException(500, f"the server failed ({type(error).__name__}); see its log")
        kind = getattr(error, "kind", _KINDS.get(error.status_code, "malformed"))
        self._metrics.errors.labels(kind).inc()
        is_unknown = error.status_code in (404, 405)
        reason = f"{error.detail}; {_EXPECTED}" if is_unknown else error.detail
        return JSONResponse({"error": reason}, error.status_code, error.headers)

    # --- from a request to its scores -------------------------------------------------------------

    async def _scored(self, request: Request, kind: type[Any]) -> tuple[Any, list[TextReward]]:
        """Return a request's record and a `TextReward` of each text.

        If the client disconnects, its waiting texts are not computed. If the server cancels the
        request because its time to stop is over, the answer is JSON too.

        Raises:
            HTTPException: The request is refused; also for its first bad text, if its kind has no
                place for the error of a text.
        """
        try:
            body, max_texts = await self._read(request), self._limits.max_queries
            record = await self._in_thread(read_request, body, kind, max_texts)
            texts: list[EncodedText | RequestError] = []
            for first in range(0, len(record.texts), _TEXTS_PER_CALL):
                batch = record.texts[first : first + _TEXTS_PER_CALL]
                texts += await self._in_thread(self._encode, batch, first)
            errors = [text for text in texts if isinstance(text, RequestError)]
            if errors and not record.is_text_refused_alone:
                raise errors[0]
            for error in errors:
                self._metrics.errors.labels(error.kind).inc()
            encoded = [text for text in texts if isinstance(text, EncodedText)]
            score_NR = await self._queued_scores(request, encoded)
        except asyncio.CancelledError:
            raise stopping_error() from None
        except ClientDisconnect:  # nobody reads this answer; its status is for the log
            raise HTTPException(_NO_ANSWER, "the client went away") from None
        if not np.isfinite(score_NR).all():
            raise HTTPException(500, "the model's score of a text is not a finite number")
        self._metrics.add_scores(score_NR)
        rows = iter(score_NR)
        rewards: list[TextReward] = []
        for text in texts:
            if isinstance(text, EncodedText):
                digest = text.prompt_digest
                rewards.append((text, self._composer.compose(next(rows), prompt_digest=digest)))
            else:
                rewards.append(text)
        return record, rewards

    async def _queued_scores(
        self, request: Request, texts: Sequence[EncodedText]
    ) -> NDArray[np.float64]:
        """Return the centred scores of texts, shape [N, R], unless the client disconnects."""
        sequences = [text.token_ids for text in texts]
        request.state.num_texts = len(texts)
        request.state.num_tokens = sum(map(len, sequences))
        if not sequences:
            return np.zeros((0, len(self._head_ids)))
        futures: list[asyncio.Future[Any]] = [
            asyncio.create_task(self._queue.score(sequences)),
            # After the body, only a disconnect can arrive.
            asyncio.ensure_future(request.receive()),
        ]
        try:
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            if not futures[0].done():
                raise ClientDisconnect
            return np.asarray(futures[0].result(), dtype=np.float64)
        finally:
            for future in futures:
                future.cancel()

    def _encode(self, texts: Texts, first: int) -> list[EncodedText | RequestError]:
        """Return the token ids of some texts; the first has the number ``first``."""
        encoded: list[EncodedText | RequestError] = []
        for index, text in enumerate(texts, first):
            try:
                encoded.append(self._encoder.encode(text, index))
            except RequestError as error:
                encoded.append(error)
        return encoded

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
        with self._metrics.batch_seconds.time():
            score_NR = score_sequences(
                self.opened.model,
                sequences,
                pad_token_id=self.opened.tokenizer.pad_token_id,
                tokens_per_microbatch=self._limits.max_batch_tokens,
            )
        self._metrics.texts.inc(len(sequences))
        self._metrics.tokens.inc(sum(map(len, sequences)))
        return score_NR
