"""Texts of many clients scored together: a bounded queue in front of one worker thread.

A request's texts stand in the queue one by one, so that a large request takes turns with small
ones that came while it waited, and what is computed at once depends on tokens alone.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from encore.errors import InputError

# Legend: N texts, R rules.

_log = logging.getLogger(__name__)

_TokenIds = NDArray[np.int32]
_Scores = NDArray[np.float32]

#: How long a batch that is not full waits for clients that were answered together.
_LINGER_SECONDS: Final = 0.002
_MAX_RETRY_SECONDS: Final = 60
#: Share of the newest batch in the average speed.
_SMOOTHING: Final = 0.2
#: Batches that fail one after the other before the queue no longer calls itself alive.
_MAX_FAILURES: Final = 3


class QueueFullError(Exception):
    """Too many tokens wait already.

    Attributes:
        retry_after_seconds: When about half of them will be done, as far as speed is known.
    """

    def __init__(self, num_queued: int, *, retry_after_seconds: int) -> None:
        super().__init__(f"{num_queued} tokens wait to be scored")
        self.num_queued = num_queued
        self.retry_after_seconds = retry_after_seconds


class QueueClosedError(Exception):
    """The server stops: nothing is accepted any more."""


class ScoringError(Exception):
    """The model failed on a batch; the log says how."""


class DeviceLostError(Exception):
    """What the scores are computed on is gone: no later batch can be scored in this process."""


class TextRefusedError(Exception):
    """The model does not take one text; the log says why.

    Attributes:
        index: Which one of its request.
        num_tokens: Its length.
    """

    def __init__(self, index: int, *, num_tokens: int) -> None:
        super().__init__(f"text {index} of {num_tokens} tokens was refused")
        self.index = index
        self.num_tokens = num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """One batch that was computed."""

    num_texts: int
    num_tokens: int
    seconds: float


class _Job:
    """A request's texts: the scores that are there, how many are not, who waits for them."""

    __slots__ = ("future", "num_left", "score_NR")

    def __init__(self, num_texts: int) -> None:
        self.future: Future[_Scores] = Future()
        self.num_left = num_texts
        self.score_NR: _Scores | None = None

    def put(self, index: int, score_R: _Scores, *, num_texts: int) -> None:
        """Note one text's scores; with the last one the request is answered."""
        if self.score_NR is None:
            self.score_NR = np.empty((num_texts, len(score_R)), dtype=np.float32)
        self.score_NR[index] = score_R
        self.num_left -= 1
        # False where the client has gone in between.
        if self.num_left == 0 and self.future.set_running_or_notify_cancel():
            self.future.set_result(self.score_NR)

    def fail(self, error: Exception) -> None:
        """Tell who waits, unless they have been told of another text, or are gone."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)


@dataclass(frozen=True, slots=True)
class _Text:
    """One text in the queue."""

    job: _Job
    index: int
    num_texts: int
    token_ids: _TokenIds


class ScoreQueue:
    """Scores texts in the order they come, in batches, on a thread of its own.

    Use it as a context manager: the thread lives inside.

    Args:
        score: The scores [N, R] of N token sequences; called on the thread alone. An InputError
            means that a sequence is not one for the model: it is found and the others are scored.
            A DeviceLostError ends the queue. Any other error fails the batch.
        max_batch_tokens: Of one call; a longer text goes alone.
        max_queue_tokens: That may wait; a request that finds the queue empty is always taken.
        on_batch: Told about every batch, on the thread.
    """

    def __init__(
        self,
        score: Callable[[Sequence[_TokenIds]], _Scores],
        *,
        max_batch_tokens: int,
        max_queue_tokens: int,
        on_batch: Callable[[BatchRecord], None] | None = None,
    ) -> None:
        self._score = score
        self._max_batch_tokens = max_batch_tokens
        self._max_queue_tokens = max_queue_tokens
        self._on_batch = on_batch
        self._changed = threading.Condition()
        self._texts: deque[_Text] = deque()
        self._num_tokens = 0
        self._tokens_per_second: float | None = None
        self._num_failures = 0  # since the last batch that was scored
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="encore-score", daemon=True)

    def __enter__(self) -> ScoreQueue:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish the batch under way; who still waits is told that the server stops."""
        self._close()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether texts are being scored, as far as the last batches tell."""
        is_working = self._thread.is_alive() and not self._is_closed
        return is_working and self._num_failures < _MAX_FAILURES

    @property
    def num_tokens(self) -> int:
        """Tokens that wait."""
        return self._num_tokens

    @property
    def num_texts(self) -> int:
        """Texts that wait."""
        return len(self._texts)

    def submit(self, sequences: Sequence[_TokenIds]) -> Future[_Scores]:
        """The scores [N, R] of a request's N texts, in time; cancelled ones are not computed.

        Raises:
            QueueFullError: come back later.
            QueueClosedError: the server stops.
        """
        num_tokens = sum(map(len, sequences))
        job = _Job(len(sequences))
        with self._changed:
            if self._is_closed:
                raise QueueClosedError("the server stops")
            if self._texts and self._num_tokens + num_tokens > self._max_queue_tokens:
                raise QueueFullError(self._num_tokens, retry_after_seconds=self._retry_seconds())
            for index, token_ids in enumerate(sequences):
                self._texts.append(_Text(job, index, len(sequences), token_ids))
            self._num_tokens += num_tokens
            self._changed.notify_all()
        return job.future

    def _work(self) -> None:
        batch: list[_Text] | None = []
        try:
            while (batch := self._take()) is not None:
                if batch:
                    self._compute(batch)
        finally:  # also where the thread dies of a mistake of ours: nobody waits for ever
            self._close(*(batch or ()))

    def _close(self, *under_way: _Text) -> None:
        with self._changed:
            self._is_closed = True
            left = [*under_way, *self._texts]
            self._texts.clear()
            self._num_tokens = 0
            self._changed.notify_all()
        for text in left:
            text.job.fail(QueueClosedError("the server stops"))

    def _take(self) -> list[_Text] | None:
        """The next texts to compute together, without those nobody waits for; None: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._texts or self._is_closed)
            if self._is_closed:
                return None
            self._changed.wait_for(self._is_enough, timeout=_LINGER_SECONDS)
            batch: list[_Text] = []
            num_tokens = 0
            while self._texts:
                size = len(self._texts[0].token_ids)
                if batch and num_tokens + size > self._max_batch_tokens:
                    break
                text = self._texts.popleft()
                self._num_tokens -= size
                if not text.job.future.done():
                    batch.append(text)
                    num_tokens += size
            return batch

    def _is_enough(self) -> bool:
        return self._num_tokens >= self._max_batch_tokens or self._is_closed

    def _compute(self, batch: Sequence[_Text]) -> None:
        started = time.perf_counter()
        try:
            score_NR = self._score([text.token_ids for text in batch])
            scored = list(zip(batch, score_NR, strict=True))
        except InputError as error:
            self._compute_without_refused(batch, error)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the thread goes on for others
            self._fail(batch, error)
            return
        self._num_failures = 0
        for text, score_R in scored:
            if not text.job.future.done():
                text.job.put(text.index, score_R, num_texts=text.num_texts)
        self._note(batch, seconds=time.perf_counter() - started)

    def _compute_without_refused(self, batch: Sequence[_Text], error: InputError) -> None:
        """Halve the batch until what the model does not take stands alone."""
        if len(batch) == 1:
            [text] = batch
            _log.warning("a text of %d tokens is refused: %s", len(text.token_ids), error)
            text.job.fail(TextRefusedError(text.index, num_tokens=len(text.token_ids)))
            return
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            left = [text for text in half if not text.job.future.done()]
            if left:
                self._compute(left)

    def _fail(self, batch: Sequence[_Text], error: Exception) -> None:
        _log.error("a batch of %d texts could not be scored", len(batch), exc_info=error)
        self._num_failures += 1
        for text in batch:
            text.job.fail(ScoringError("the model failed on this batch"))
        if isinstance(error, DeviceLostError):
            self._close()

    def _note(self, batch: Sequence[_Text], *, seconds: float) -> None:
        num_tokens = sum(len(text.token_ids) for text in batch)
        speed = num_tokens / max(seconds, 1e-6)
        before = self._tokens_per_second
        self._tokens_per_second = (
            speed if before is None else before + _SMOOTHING * (speed - before)
        )
        if self._on_batch is not None:
            self._on_batch(
                BatchRecord(num_texts=len(batch), num_tokens=num_tokens, seconds=seconds)
            )

    def _retry_seconds(self) -> int:
        if self._tokens_per_second is None:
            return 1
        seconds = self._num_tokens / 2 / self._tokens_per_second
        return min(max(1, math.ceil(seconds)), _MAX_RETRY_SECONDS)
