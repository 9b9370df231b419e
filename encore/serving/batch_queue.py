"""A bounded queue that scores the texts of many clients together, one batch at a time.

The texts of a request wait in the queue one by one. A large request therefore shares batches with
small requests that came later, and the size of a batch depends on tokens alone. A request that
finds the queue full waits until it has room, in the order of arrival. Everything except the scoring
runs on the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from encore.model.layouts import TokenIds
from encore.serving.serve_options import ServeLimits

# Legend: N texts, R rules.

_log = logging.getLogger(__name__)

_Scores = NDArray[np.float32]

#: Seconds that a batch which is not full waits for clients whose last requests shared a batch.
_LINGER_SECONDS = 0.002
#: Consecutive failed batches after which the queue reports that it is not alive.
_MAX_FAILURES = 3


class _Text(NamedTuple):
    """One text of a request.

    Attributes:
        token_ids: Its tokens.
        future: Future that receives its scores, shape [R].
        timeout: Timer that refuses the request, unless a batch takes one of its texts before.
    """

    token_ids: TokenIds
    future: asyncio.Future[_Scores]
    timeout: asyncio.TimerHandle


class BatchQueue:
    """A queue that scores texts in the order of arrival. `score` returns only while `run` runs.

    Attributes:
        texts: Texts in the queue.
        num_tokens: Number of tokens in these texts.

    Args:
        score_batch: Function that returns the scores, shape [N, R], of N token sequences. It is
            called in another thread, one call at a time. An error fails the batch; the loss of
            the device ends the queue.
        limits: Largest numbers of tokens in a batch and in the queue, and the time that a request
            may wait for its first batch. A longer text is scored alone, and an empty queue takes
            any request.
    """

    def __init__(
        self, score_batch: Callable[[Sequence[TokenIds]], _Scores], *, limits: ServeLimits
    ) -> None:
        self._score_batch = score_batch
        self._limits = limits
        self.texts: deque[_Text] = deque()
        #: Texts of the requests that wait for room, by number of arrival.
        self._outside: dict[int, list[_Text]] = {}
        self._numbers = itertools.count()
        self._arrived = asyncio.Event()
        self._is_closed = False
        self._num_failures = 0  # since the last batch that was scored
        self.num_tokens = 0

    @property
    def is_alive(self) -> bool:
        """Return True if the queue is open and some recent batch was scored."""
        return not self._is_closed and self._num_failures < _MAX_FAILURES

    async def score(self, sequences: Sequence[TokenIds]) -> _Scores:
        """Score the N texts of a request, shape [N, R]. A cancelled text is not computed.

        Raises:
            HTTPException: 503 if no batch takes a text of the request in time or the queue has
                ended, 500 if the model failed.
        """
        if self._is_closed:
            raise stopping_error()
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[_Scores]] = [loop.create_future() for _ in sequences]
        timeout = loop.call_later(self._limits.max_wait_seconds, self._refuse, futures)
        pairs = zip(sequences, futures, strict=True)
        number = next(self._numbers)
        self._outside[number] = [_Text(token_ids, future, timeout) for token_ids, future in pairs]
        self._admit()
        try:
            return np.stack(await asyncio.gather(*futures))
        finally:
            timeout.cancel()
            for future in futures:
                future.cancel()
            if self._outside.pop(number, None):
                self._admit()  # a smaller request behind this one may have room

    async def run(self) -> None:
        """Score batch after batch until cancelled, or until the device is lost."""
        batch: list[_Text] = []
        try:
            while not self._is_closed:
                await self._arrived.wait()
                if self.num_tokens < self._limits.max_batch_tokens:
                    await asyncio.sleep(_LINGER_SECONDS)
                batch = self._take()
                if batch:
                    await self._compute(batch)
        finally:  # so that no client waits for ever
            self._is_closed = True
            outside = itertools.chain.from_iterable(self._outside.values())
            _fail([text.future for text in (*batch, *self.texts, *outside)], stopping_error())
            self.texts.clear()
            self._outside.clear()
            self.num_tokens = 0

    def _admit(self) -> None:
        """Move the texts of requests that wait for room into the queue, as far as it has room."""
        while self._outside:
            number, texts = next(iter(self._outside.items()))
            num_tokens = sum(len(text.token_ids) for text in texts)
            if self.texts and self.num_tokens + num_tokens > self._limits.max_queue_tokens:
                return
            del self._outside[number]
            self.texts.extend(texts)
            self.num_tokens += num_tokens
            self._arrived.set()

    def _refuse(self, futures: Sequence[asyncio.Future[_Scores]]) -> None:
        """Answer a request that no batch took in time."""
        reason = (
            f"{self.num_tokens} tokens wait to be scored, and this request was not begun within"
        )
        seconds = f"{self._limits.max_wait_seconds:g} s (--max-wait-seconds)"
        error = HTTPException(503, f"{reason} {seconds}; come back later", {"retry-after": "1"})
        _fail(futures, error)

    def _take(self) -> list[_Text]:
        """Remove and return the next texts to score together, without cancelled ones."""
        batch: list[_Text] = []
        num_tokens = 0
        while self.texts:
            size = len(self.texts[0].token_ids)
            if batch and num_tokens + size > self._limits.max_batch_tokens:
                break
            text = self.texts.popleft()
            self.num_tokens -= size
            if not text.future.done():
                text.timeout.cancel()
                batch.append(text)
                num_tokens += size
        self._admit()
        if not self.texts:
            self._arrived.clear()
        return batch

    async def _compute(self, batch: Sequence[_Text]) -> None:
        sequences = [text.token_ids for text in batch]
        try:
            score_NR = await asyncio.to_thread(self._score_batch, sequences)
            scored = list(zip(batch, score_NR, strict=True))
        except Exception as error:  # noqa: BLE001 - the queue goes on for other clients
            _log.error("a batch of %d texts could not be scored", len(batch), exc_info=error)
            self._num_failures += 1
            self._is_closed = isinstance(error, torch.AcceleratorError)
            futures = [text.future for text in batch]
            _fail(futures, HTTPException(500, "the model failed on this batch; see the log"))
        else:
            self._num_failures = 0
            for text, score_R in scored:
                if not text.future.done():
                    text.future.set_result(score_R)


def stopping_error() -> HTTPException:
    """Return the answer for a request that the server cannot finish because it stops."""
    return HTTPException(503, "the server stops; send it to another one", {"connection": "close"})


def _fail(futures: Sequence[asyncio.Future[_Scores]], error: HTTPException) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
