"""Scores the texts of many clients together: one bounded queue, one batch at a time.

A request's texts stand in the queue one by one, so a large request shares batches with small ones
that came later, and the size of a batch depends on tokens alone. Everything but the scoring itself
runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from encore.errors import InputError
from encore.serving.reward_requests import Refusal

# Legend: N texts, R rules.

_log = logging.getLogger(__name__)

TokenIds = NDArray[np.int32]
_Scores = NDArray[np.float32]

#: How long a batch that is not full waits for clients that were answered together.
_LINGER_SECONDS: Final = 0.002
_MAX_RETRY_SECONDS: Final = 60
#: Batches that fail one after the other before the queue reports that it is not alive.
_MAX_FAILURES: Final = 3


class _Text(NamedTuple):
    """One text in the queue; ``future`` gets its scores [R]."""

    place: int
    token_ids: TokenIds
    future: asyncio.Future[_Scores]


class BatchQueue:
    """Scores texts in the order they come. `run` must be running for `score` to return.

    Attributes:
        num_tokens: Tokens that wait.

    Args:
        score_batch: The scores [N, R] of N token sequences; called in one thread of its own. An
            InputError means that the model refuses a sequence: that one is found and the others
            are scored. A lost device ends the queue. Any other error fails the batch.
        max_batch_tokens: Tokens of one call; a longer text is scored alone.
        max_queue_tokens: Tokens that may wait; an empty queue takes any request.
    """

    def __init__(
        self,
        score_batch: Callable[[Sequence[TokenIds]], _Scores],
        *,
        max_batch_tokens: int,
        max_queue_tokens: int,
    ) -> None:
        self._score_batch = score_batch
        self._max_batch_tokens = max_batch_tokens
        self._max_queue_tokens = max_queue_tokens
        self._texts: deque[_Text] = deque()
        self._arrived = asyncio.Event()
        self._is_closed = False
        self._num_failures = 0  # since the last batch that was scored
        self._seconds_per_token = 0.0  # of that batch
        self.num_tokens = 0

    @property
    def num_texts(self) -> int:
        """Texts that wait."""
        return len(self._texts)

    @property
    def is_alive(self) -> bool:
        """Whether texts are being scored, as far as the last batches tell."""
        return not self._is_closed and self._num_failures < _MAX_FAILURES

    async def score(self, sequences: Sequence[TokenIds]) -> _Scores:
        """The scores [N, R] of a request's N texts; what is cancelled is not computed.

        Raises:
            Refusal: 503 too many tokens wait or the queue has ended, 500 the model failed, 422 the
                model refuses one of the texts.
        """
        if self._is_closed:
            raise stopping()
        num_tokens = sum(map(len, sequences))
        if self._texts and self.num_tokens + num_tokens > self._max_queue_tokens:
            # About when half of what waits is done.
            seconds = math.ceil(self.num_tokens / 2 * self._seconds_per_token)
            raise Refusal(
                503,
                f"{self.num_tokens} tokens wait to be scored, no more are taken; come back later",
                retry_after=str(min(max(1, seconds), _MAX_RETRY_SECONDS)),
            )
        loop = asyncio.get_running_loop()
        texts = [_Text(i, ids, loop.create_future()) for i, ids in enumerate(sequences)]
        self._texts.extend(texts)
        self.num_tokens += num_tokens
        self._arrived.set()
        try:
            return np.stack(await asyncio.gather(*(text.future for text in texts)))
        finally:
            for text in texts:
                text.future.cancel()

    async def run(self) -> None:
        """Score batch after batch until cancelled, or until the device is lost."""
        batch: list[_Text] = []
        with ThreadPoolExecutor(1, thread_name_prefix="encore-score") as thread:
            try:
                while not self._is_closed:
                    await self._arrived.wait()
                    if self.num_tokens < self._max_batch_tokens:
                        await asyncio.sleep(_LINGER_SECONDS)
                    batch = self._take()
                    await self._compute(batch, thread)
            except asyncio.CancelledError:
                raise
            except BaseException:  # noqa: BLE001 - the log has it, and clients hear that it ended
                _log.exception("the queue has ended; start the server again")
            finally:  # also after a fault of ours: no client waits for ever
                self._is_closed = True
                _fail([*batch, *self._texts], stopping())
                self._texts.clear()
                self.num_tokens = 0

    def _take(self) -> list[_Text]:
        """The next texts to score together, without those that nobody waits for."""
        batch: list[_Text] = []
        num_tokens = 0
        while self._texts:
            size = len(self._texts[0].token_ids)
            if batch and num_tokens + size > self._max_batch_tokens:
                break
            text = self._texts.popleft()
            self.num_tokens -= size
            if not text.future.done():
                batch.append(text)
                num_tokens += size
        if not self._texts:
            self._arrived.clear()
        return batch

    async def _compute(self, batch: Sequence[_Text], thread: ThreadPoolExecutor) -> None:
        if not batch:
            return
        started = time.perf_counter()
        sequences = [text.token_ids for text in batch]
        try:
            score_NR = await asyncio.get_running_loop().run_in_executor(
                thread, self._score_batch, sequences
            )
            scored = list(zip(batch, score_NR, strict=True))
        except InputError as error:
            if len(batch) > 1:  # halve until what the model refuses stands alone
                middle = len(batch) // 2
                await self._compute(batch[:middle], thread)
                await self._compute(batch[middle:], thread)
                return
            _log.warning("a text of %d tokens is refused: %s", len(sequences[0]), error)
            reason = (
                f"text {batch[0].place} (counted from 0) of {len(sequences[0])} tokens: the model "
                "does not take it, the server's log says why; the others of the request were not "
                "scored"
            )
            _fail(batch, Refusal(422, reason))
        except Exception as error:  # noqa: BLE001 - whatever it is, the queue goes on for others
            _log.error("a batch of %d texts could not be scored", len(batch), exc_info=error)
            self._num_failures += 1
            self._is_closed = isinstance(error, torch.AcceleratorError)
            _fail(batch, Refusal(500, "the model failed on this batch; see the server's log"))
        else:
            self._num_failures = 0
            seconds = time.perf_counter() - started
            self._seconds_per_token = seconds / sum(map(len, sequences))
            for text, score_R in scored:
                if not text.future.done():
                    text.future.set_result(score_R)


def stopping() -> Refusal:
    """What a client hears whose request the server does not finish."""
    return Refusal(503, "the server stops; send it to another one", connection="close")


def _fail(texts: Sequence[_Text], error: Refusal) -> None:
    for text in texts:
        if not text.future.done():
            text.future.set_exception(error)
