"""Texts of many clients are scored together, a full queue says so, and nobody waits for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait

import numpy as np
import pytest
from numpy.typing import NDArray

from encore.errors import InputError
from encore.serving.batching import (
    BatchRecord,
    DeviceLostError,
    QueueClosedError,
    QueueFullError,
    ScoreQueue,
    ScoringError,
    TextRefusedError,
)

PATIENCE = 20.0


class Scorer:
    """Scores a text by its first token and its length; waits until it is told to go on."""

    def __init__(self, *, is_held: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()
        if not is_held:
            self.may_go_on.set()

    def __call__(self, sequences: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        self.batches.append([len(ids) for ids in sequences])
        self.has_begun.set()
        assert self.may_go_on.wait(PATIENCE)
        return np.array([[ids[0], len(ids)] for ids in sequences], dtype=np.float32)


def text(first: int, length: int) -> NDArray[np.int32]:
    return np.full(length, first, dtype=np.int32)


def queue(scorer, *, batch: int = 100, waiting: int = 10_000, on_batch=None) -> ScoreQueue:
    return ScoreQueue(scorer, max_batch_tokens=batch, max_queue_tokens=waiting, on_batch=on_batch)


def test_everybody_gets_their_own_scores_in_their_own_order():
    scorer = Scorer()
    with queue(scorer) as ours:
        futures = [ours.submit([text(7 * n, n + 1), text(7 * n + 1, 90)]) for n in range(1, 20)]
        for n, future in enumerate(futures, start=1):
            expected = [[7 * n, n + 1], [7 * n + 1, 90]]
            np.testing.assert_array_equal(future.result(PATIENCE), expected)


def test_what_came_while_a_batch_was_computed_is_computed_together():
    scorer = Scorer(is_held=True)
    records: list[BatchRecord] = []
    with queue(scorer, on_batch=records.append) as ours:
        first = ours.submit([text(1, 10)])
        assert scorer.has_begun.wait(PATIENCE)
        others = [ours.submit([text(n, 30)]) for n in range(5)]
        scorer.may_go_on.set()
        wait([first, *others], PATIENCE)
    # 30 + 30 + 30 fit into 100, a fourth does not
    assert scorer.batches == [[10], [30, 30, 30], [30, 30]]
    assert [(record.num_texts, record.num_tokens) for record in records] == [
        (1, 10),
        (3, 90),
        (2, 60),
    ]


def test_a_text_longer_than_a_batch_goes_alone():
    scorer = Scorer()
    with queue(scorer, batch=50) as ours:
        ours.submit([text(1, 20), text(2, 500), text(3, 20)]).result(PATIENCE)
    assert scorer.batches == [[20], [500], [20]]


def test_a_large_request_takes_turns_with_a_small_one():
    scorer = Scorer(is_held=True)
    with queue(scorer, batch=100) as ours:
        blocking = ours.submit([text(0, 100)])
        assert scorer.has_begun.wait(PATIENCE)
        large = ours.submit([text(1, 60)] * 4)
        small = ours.submit([text(2, 40)])
        scorer.may_go_on.set()
        wait([blocking, large, small], PATIENCE)
    # The small one shares the batch of the large one's last text.
    assert scorer.batches == [[100], [60], [60], [60], [60, 40]]


def test_a_full_queue_says_when_to_come_back():
    scorer = Scorer(is_held=True)
    with queue(scorer, waiting=100) as ours:
        ours.submit([text(1, 10)])
        assert scorer.has_begun.wait(PATIENCE)
        ours.submit([text(2, 5_000)])  # an empty queue takes what would never fit
        with pytest.raises(QueueFullError, match="5000 tokens wait") as caught:
            ours.submit([text(3, 1)])
        assert 1 <= caught.value.retry_after_seconds <= 60
        assert (ours.num_texts, ours.num_tokens) == (1, 5_000)
        scorer.may_go_on.set()


def test_the_time_to_come_back_follows_from_the_speed():
    ours = queue(Scorer())
    ours._num_tokens = 1_000
    assert ours._retry_seconds() == 1  # nothing is known yet
    ours._tokens_per_second = 100.0
    assert ours._retry_seconds() == 5  # half of 1,000 tokens at 100 a second
    ours._tokens_per_second = 0.1
    assert ours._retry_seconds() == 60


def test_what_nobody_waits_for_is_not_computed():
    scorer = Scorer(is_held=True)
    with queue(scorer) as ours:
        first = ours.submit([text(1, 10)])
        assert scorer.has_begun.wait(PATIENCE)
        gone, last = ours.submit([text(2, 20)]), ours.submit([text(3, 30)])
        assert gone.cancel()
        scorer.may_go_on.set()
        wait([first, last], PATIENCE)
        assert ours.num_tokens == 0
    assert scorer.batches == [[10], [30]]


def test_a_failing_batch_fails_its_own_requests_and_no_other(caplog):
    def score(sequences: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        if any(ids[0] == 13 for ids in sequences):
            raise RuntimeError("out of memory")
        return np.zeros((len(sequences), 1), dtype=np.float32)

    with queue(score, batch=10) as ours:
        bad, good = ours.submit([text(13, 10), text(1, 10)]), ours.submit([text(2, 10)])
        with pytest.raises(ScoringError):
            bad.result(PATIENCE)
        assert good.result(PATIENCE).tolist() == [[0.0]]
        assert ours.is_alive
    assert "a batch of 1 texts could not be scored" in caplog.text


@pytest.mark.parametrize("error", [TypeError, IndexError, KeyError, MemoryError, RuntimeError])
def test_no_kind_of_error_ends_the_thread_and_several_in_a_row_are_told(error):
    def score(sequences: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        if sequences[0][0] == 13:
            raise error("not as planned")
        return np.zeros((len(sequences), 1), dtype=np.float32)

    with queue(score) as ours:
        for is_alive_after in (True, True, False):
            with pytest.raises(ScoringError):
                ours.submit([text(13, 10)]).result(PATIENCE)
            assert ours.is_alive == is_alive_after
        # Whoever asks is answered all the same, and one success makes it well again.
        assert ours.submit([text(1, 10)]).result(PATIENCE).tolist() == [[0.0]]
        assert ours.is_alive


def test_too_few_scores_fail_the_batch_and_not_the_thread():
    def score(_: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        return np.zeros((1, 1), dtype=np.float32)

    with queue(score) as ours:
        with pytest.raises(ScoringError):
            ours.submit([text(1, 10), text(2, 10)]).result(PATIENCE)
        assert ours.is_alive


def test_a_lost_device_ends_the_queue_at_once():
    scorer = Scorer(is_held=True)

    def score(sequences: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        scorer(sequences)
        raise DeviceLostError("device-side assert triggered")

    with queue(score, batch=10) as ours:
        first, second = ours.submit([text(1, 10)]), ours.submit([text(2, 10)])
        scorer.may_go_on.set()
        assert isinstance(first.exception(PATIENCE), ScoringError)
        assert isinstance(second.exception(PATIENCE), QueueClosedError)
        assert not ours.is_alive
        with pytest.raises(QueueClosedError):
            ours.submit([text(3, 10)])
    assert scorer.batches == [[10]]


def test_a_text_that_the_model_refuses_fails_its_own_request_alone(caplog):
    scorer = Scorer(is_held=True)

    def score(sequences: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        if max(map(len, sequences)) > 50:
            raise InputError("attention window 50 tokens")
        return scorer(sequences)

    with queue(score, batch=1_000) as ours:
        blocking = ours.submit([text(0, 10)])
        assert scorer.has_begun.wait(PATIENCE)
        mates = [ours.submit([text(n, n)]) for n in range(1, 8)]
        bad = ours.submit([text(8, 8), text(9, 60), text(10, 10)])
        mates += [ours.submit([text(n, n)]) for n in range(11, 16)]
        scorer.may_go_on.set()
        with pytest.raises(TextRefusedError) as caught:
            bad.result(PATIENCE)
        assert (caught.value.index, caught.value.num_tokens) == (1, 60)
        found = [mate.result(PATIENCE).tolist() for mate in mates]
        assert found == [[[n, n]] for n in [*range(1, 8), *range(11, 16)]]
        assert blocking.result(PATIENCE).tolist() == [[0, 10]]
        for _ in range(5):  # a client's doing, however often: no sign of a broken model
            with pytest.raises(TextRefusedError):
                ours.submit([text(1, 60)]).result(PATIENCE)
        assert ours.is_alive
    assert "a text of 60 tokens is refused: attention window 50 tokens" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mistake_of_ours_ends_the_thread_and_leaves_nobody_waiting():
    def on_batch(_: BatchRecord) -> None:
        raise TypeError("not as planned")

    with queue(Scorer(), batch=10, on_batch=on_batch) as ours:
        futures = [ours.submit([text(1, 10), text(2, 10)])]
        give_up = time.monotonic() + PATIENCE
        while ours.is_alive and time.monotonic() < give_up:
            time.sleep(0.01)
        assert not ours.is_alive
        with pytest.raises(QueueClosedError):
            ours.submit([text(2, 10)])
    assert all(isinstance(future.exception(PATIENCE), QueueClosedError) for future in futures)


def test_closing_finishes_the_batch_under_way_and_tells_the_rest():
    scorer = Scorer(is_held=True)
    with queue(scorer, batch=10) as ours:
        first, second = ours.submit([text(1, 10)]), ours.submit([text(2, 10)])
        assert scorer.has_begun.wait(PATIENCE)
        threading.Timer(0.2, scorer.may_go_on.set).start()
    assert first.result(0).tolist() == [[1, 10]]
    assert isinstance(second.exception(0), QueueClosedError)
    with pytest.raises(QueueClosedError):
        ours.submit([text(3, 1)])


def test_a_thousand_requests_from_many_threads_all_come_back():
    scorer = Scorer()
    found: list[tuple[int, Future[NDArray[np.float32]]]] = []
    with queue(scorer, batch=64) as ours:

        def send(start: int) -> None:
            numbers = range(start, start + 125)
            found.extend((n, ours.submit([text(n, 1 + n % 7)])) for n in numbers)

        threads = [threading.Thread(target=send, args=(1 + 125 * k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        results = {n: future.result(PATIENCE).tolist() for n, future in found}
    assert results == {n: [[n, 1 + n % 7]] for n in range(1, 1001)}
    assert len(scorer.batches) < 1000
