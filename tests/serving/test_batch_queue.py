"""Texts of many clients are scored together; a full or dead queue answers every client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from encore.serving.batch_queue import BatchQueue
from encore.serving.serve_options import ServeLimits

PATIENCE = 20.0


class Scorer:
    """Score a text by its first token and its length; wait until the test sets `may_go_on`."""

    def __init__(self, *, is_held: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.may_go_on = threading.Event()
        if not is_held:
            self.may_go_on.set()

    def __call__(self, sequences: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        self.batches.append([len(ids) for ids in sequences])
        assert self.may_go_on.wait(PATIENCE)
        return np.array([[ids[0], len(ids)] for ids in sequences], dtype=np.float32)


def text(first: int, length: int) -> NDArray[np.int32]:
    return np.full(length, first, dtype=np.int32)


def with_queue(
    scorer: Callable[..., Any],
    use: Callable[[BatchQueue], Awaitable[None]],
    *,
    batch: int = 100,
    waiting: int = 10_000,
    wait_seconds: float = 150.0,
) -> None:
    """Run ``use`` beside a queue; the queue is cancelled afterwards."""

    async def run() -> None:
        limits = ServeLimits(
            max_batch_tokens=batch, max_queue_tokens=waiting, max_wait_seconds=wait_seconds
        )
        queue = BatchQueue(scorer, limits=limits)
        task = asyncio.create_task(queue.run())
        async with asyncio.timeout(PATIENCE):
            await use(queue)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(run())


def submit(queue: BatchQueue, *texts: NDArray[np.int32]) -> asyncio.Task[NDArray[np.float32]]:
    return asyncio.create_task(queue.score(texts))


async def started(scorer: Scorer) -> None:
    """Wait until the first batch is with the scorer."""
    while not scorer.batches:
        await asyncio.sleep(0.005)


def test_every_client_gets_its_scores_in_its_order():
    scorer = Scorer()

    async def use(queue):
        tasks = [submit(queue, text(n, 1 + n % 7), text(n, 90)) for n in range(1, 301)]
        scores = await asyncio.gather(*tasks)
        expected = [[[n, 1 + n % 7], [n, 90]] for n in range(1, 301)]
        assert [rows.tolist() for rows in scores] == expected

    with_queue(scorer, use, batch=200, waiting=100_000)
    assert len(scorer.batches) < 300


def test_batches_keep_the_token_limit_and_small_requests_share_those_of_large_ones():
    scorer = Scorer(is_held=True)

    async def use(queue):
        first = submit(queue, text(0, 10))
        await started(scorer)
        large = submit(queue, *[text(1, 60)] * 3, text(1, 500), text(1, 50))
        small = submit(queue, text(2, 40))
        await asyncio.sleep(0)
        assert (len(queue.texts), queue.num_tokens) == (6, 770)
        scorer.may_go_on.set()
        await asyncio.gather(first, large, small)

    with_queue(scorer, use)
    # 60 and 60 do not fit into 100, a text above 100 goes alone, 50 and 40 fit.
    assert scorer.batches == [[10], [60], [60], [60], [500], [50, 40]]


def test_requests_wait_for_room_in_the_order_of_arrival_and_one_whose_client_goes_leaves():
    scorer = Scorer(is_held=True)

    async def use(queue):
        first = submit(queue, text(1, 10))
        await started(scorer)
        # 60 tokens are in the queue of 100; 50 have no room, and the small ones do not overtake.
        tasks = [submit(queue, text(2, length)) for length in (60, 50, 30, 5)]
        await asyncio.sleep(0)
        assert (len(queue.texts), queue.num_tokens) == (1, 60)
        tasks[1].cancel()  # 30 and 5 have room now
        await asyncio.wait([tasks[1]])
        assert (len(queue.texts), queue.num_tokens) == (3, 95)
        late = submit(queue, text(2, 5_000))  # as many as it likes, once the queue is empty
        scorer.may_go_on.set()
        await asyncio.gather(first, tasks[0], *tasks[2:], late)

    with_queue(scorer, use, batch=60, waiting=100)
    assert scorer.batches == [[10], [60], [30, 5], [5_000]]


def test_a_request_that_no_batch_takes_in_time_is_a_503_and_one_that_has_begun_is_not():
    scorer = Scorer(is_held=True)

    async def use(queue):
        begun = submit(queue, text(1, 10), text(1, 95))  # two batches
        await started(scorer)
        waiting = [submit(queue, text(2, 5)), submit(queue, text(3, 10))]  # in the queue, outside
        for task in waiting:
            with pytest.raises(HTTPException, match=r"tokens wait .* 0.2 s") as caught:
                await task
            assert (caught.value.status_code, caught.value.headers) == (503, {"retry-after": "1"})
        scorer.may_go_on.set()
        assert (await begun).tolist() == [[1, 10], [1, 95]]

    with_queue(scorer, use, waiting=100, wait_seconds=0.2)
    assert scorer.batches == [[10], [95]]


@pytest.mark.parametrize("error", [MemoryError, None])
def test_an_error_fails_its_batch_and_three_in_a_row_make_the_queue_not_alive(error, caplog):
    def score(sequences):
        is_bad = sequences[0][0] == 13
        if is_bad and error is not None:
            raise error("not as planned")
        return np.zeros((0 if is_bad else len(sequences), 1), dtype=np.float32)  # too few scores

    async def use(queue):
        for is_alive_after in (True, True, False):
            with pytest.raises(HTTPException, match="the model failed on this batch") as caught:
                await queue.score([text(13, 10)])
            assert caught.value.status_code == 500
            assert queue.is_alive == is_alive_after
        # Requests are still answered, and one success makes the queue alive again.
        assert (await queue.score([text(1, 10)])).tolist() == [[0.0]]
        assert queue.is_alive

    with_queue(score, use)
    assert "a batch of 1 texts could not be scored" in caplog.text


def test_a_lost_device_ends_the_queue_and_answers_every_client():
    def score(_sequences):
        raise torch.AcceleratorError("device-side assert triggered")

    async def use(queue):
        first, second = submit(queue, text(1, 10)), submit(queue, text(2, 10))
        with pytest.raises(HTTPException, match="the model failed"):
            await first
        with pytest.raises(HTTPException, match="the server stops"):
            await second
        assert not queue.is_alive
        with pytest.raises(HTTPException, match="the server stops"):
            await queue.score([text(3, 10)])

    with_queue(score, use, batch=10)


class PanicError(BaseException):
    """Error of a library in Rust, which is no subclass of Exception."""


@pytest.mark.parametrize("num_done", [0, 1])
def test_no_client_of_a_dead_worker_is_left_waiting(num_done):
    """Clients of the batch in progress and clients that wait get an answer."""
    scorer = Scorer()

    def score(sequences):
        if len(scorer.batches) == num_done:
            raise PanicError("not as planned")
        return scorer(sequences)

    async def use(queue):
        # The last text of the first request is the batch that fails.
        tasks = [submit(queue, *[text(n, 10)] * (1 + num_done)) for n in range(3)]
        finished, pending = await asyncio.wait(tasks, timeout=PATIENCE / 2)
        assert not pending
        assert {task.exception().status_code for task in finished} == {503}
        assert not queue.is_alive

    with_queue(score, use, batch=10, waiting=30)  # the last client waits for room
