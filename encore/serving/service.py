"""What the server does with a request: read it, encode it, have it scored, say what came of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect, Request

from encore.model.opening import OpenedModel
from encore.serving.batching import (
    QueueClosedError,
    QueueFullError,
    ScoreQueue,
    ScoringError,
    TextRefusedError,
)
from encore.serving.body import BodyReader
from encore.serving.composer import Composed, Composer
from encore.serving.config import ServerConfig
from encore.serving.encoding import EncodedText, RequestEncoder
from encore.serving.metrics import ServerMetrics
from encore.serving.observing import size_of
from encore.serving.refusal import Refusal
from encore.serving.requests import AnyRequest, RewardRequest, ScoreRequest, read_request

_JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answered:
    """A request's texts and what they scored."""

    texts: Sequence[EncodedText]
    composed: Composed


class RewardService:
    """The endpoints of one model. Everything but the encoding runs on the event loop.

    Args:
        opened: The model.
        composer: How its heads become a reward.
        queue: Where texts are scored.
        metrics: Where they are counted.
        config: The limits.
        encoding: One thread, on which bodies are parsed and texts become tokens.
    """

    def __init__(
        self,
        opened: OpenedModel,
        *,
        composer: Composer,
        queue: ScoreQueue,
        metrics: ServerMetrics,
        config: ServerConfig,
        encoding: ThreadPoolExecutor,
    ) -> None:
        self._opened = opened
        self._composer = composer
        self._queue = queue
        self._metrics = metrics
        self._config = config
        self._encoding = encoding
        self._encoder = RequestEncoder(
            opened.tokenizer,
            num_embeddings=opened.model.trunk.get_input_embeddings().weight.shape[0],
        )
        self._bodies = BodyReader(
            max_bytes=config.max_request_bytes,
            max_held_bytes=config.held_bytes,
            seconds=config.body_seconds,
        )

    async def rewards(self, request: Request) -> _JsonObject:
        """OpenRLHF's answer: old clients read ``rewards`` alone, newer ones all three.

        ``rewards`` are centred, as training wants them; ``scores``, by which clients filter and
        which they log, have the means added back; ``extra_logs`` has every rule's score on the
        scale of its ratings.
        """

        def encode(asked: RewardRequest) -> list[EncodedText]:
            return self._encoder.encode_queries(asked.query)

        composed = (await self._answer(request, RewardRequest, encode)).composed
        return {
            "rewards": composed.reward_N.tolist(),
            "scores": composed.reward_shown_N.tolist(),
            "extra_logs": dict(
                zip(self._composer.head_ids, composed.shown_NR.T.tolist(), strict=True)
            ),
        }

    async def scores(self, request: Request) -> _JsonObject:
        """Every conversation's reward and what each rule contributes to it."""

        def encode(asked: ScoreRequest) -> list[EncodedText]:
            return self._encoder.encode_conversations(asked.conversations)

        answered = await self._answer(request, ScoreRequest, encode)
        return {
            "model": self._opened.name,
            "digest": self._opened.digest,
            "results": [self._result(answered, row) for row in range(len(answered.texts))],
        }

    def health(self) -> _JsonObject:
        """That texts are being scored.

        Raises:
            Refusal: 503 where they are not.
        """
        if not self._queue.is_alive:
            raise Refusal(
                503,
                "this server stops, its worker has ended, or batch after batch fails: start it "
                "again",
            )
        return {"status": "ok", "queued_texts": self._queue.num_texts}

    def about(self) -> _JsonObject:
        """Which model this is, what its heads weigh, what a client may ask for."""
        tokenizer, composer = self._opened.tokenizer, self._composer
        rules = zip(
            composer.head_ids, composer.weight_R.tolist(), composer.mean_R.tolist(), strict=True
        )
        return {
            "model": self._opened.name,
            "digest": self._opened.digest,
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
                "max_queries": self._config.max_queries,
                "max_request_bytes": self._config.max_request_bytes,
            },
        }

    async def _answer(
        self,
        request: Request,
        kind: type[AnyRequest],
        encode: Callable[[AnyRequest], list[EncodedText]],
    ) -> _Answered:
        def parse_and_encode(body: bytes) -> list[EncodedText]:
            return encode(read_request(body, kind, max_texts=self._config.max_queries))

        try:
            async with self._bodies.read(request) as body:
                loop = asyncio.get_running_loop()
                texts = await loop.run_in_executor(self._encoding, parse_and_encode, body)
            size = size_of(request.scope)
            size.num_texts = len(texts)
            size.num_tokens = sum(len(text.token_ids) for text in texts)
            score_NR = await self._score(request, texts)
        except (QueueClosedError, asyncio.CancelledError):
            # The server cancels what it could not answer in its time to stop.
            raise Refusal(503, "the server stops; send it to another one", closes=True) from None
        return _Answered(texts=texts, composed=self._composer.compose(score_NR))

    async def _score(self, request: Request, texts: Sequence[EncodedText]) -> NDArray[np.float32]:
        try:
            future = self._queue.submit([text.token_ids for text in texts])
            self._metrics.cut(sum(text.num_cut > 0 for text in texts))
            score_NR = await _unless_gone(request, asyncio.wrap_future(future))
        except QueueFullError as error:
            raise Refusal(
                503,
                f"{error}, no more are taken; come back in {error.retry_after_seconds} s",
                retry_after_seconds=error.retry_after_seconds,
            ) from None
        except TextRefusedError as error:
            raise Refusal(
                422,
                f"text {error.index} (counted from 0) of {error.num_tokens} tokens: the model does "
                "not take it, the server's log says why; the others of the request were not scored",
            ) from None
        except ScoringError as error:
            raise Refusal(500, f"{error}; see the server's log") from None
        if not np.isfinite(score_NR).all():
            raise Refusal(500, "the model's score of a text is not a finite number")
        return score_NR

    def _result(self, answered: _Answered, row: int) -> _JsonObject:
        text, composed, composer = answered.texts[row], answered.composed, self._composer
        columns = zip(
            composer.head_ids,
            composed.shown_NR[row].tolist(),
            composed.centred_NR[row].tolist(),
            composer.weight_R.tolist(),
            composed.contribution_NR[row].tolist(),
            strict=True,
        )
        return {
            "reward": float(composed.reward_N[row]),
            "reward_shown": float(composed.reward_shown_N[row]),
            "rules": [
                {
                    "rule_id": rule_id,
                    "score": shown,
                    "centred_score": centred,
                    "weight": weight,
                    "contribution": contribution,
                }
                for rule_id, shown, centred, weight, contribution in columns
            ],
            "num_tokens": len(text.token_ids),
            "num_cut": text.num_cut,
        }


async def _unless_gone(
    request: Request, future: asyncio.Future[NDArray[np.float32]]
) -> NDArray[np.float32]:
    """What the future gives, unless the client goes away first; then nobody computes it.

    Raises:
        ClientDisconnect: it went away.
    """
    gone = asyncio.ensure_future(_gone(request))
    try:
        either: list[asyncio.Future[Any]] = [future, gone]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise ClientDisconnect
        return future.result()
    finally:
        future.cancel()
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
