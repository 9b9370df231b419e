"""Figures wait while a tracker is away, in order, and are sent many at a time."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tasks.outbox import Figures, Outbox


def figures(step: int, *, num_values: int = 1) -> Figures:
    values = {f"m{number}": float(step) for number in range(num_values)}
    return Figures(step=step, timestamp_ms=step, values=values)


class Tracker:
    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.is_away = False
        self.num_tried = 0
        self.now = 0.0
        self.said: list[str] = []

    def send(self, sent: Sequence[Figures]) -> None:
        self.num_tried += 1
        if self.is_away:
            raise ConnectionError("refused")
        self.calls.append([item.step for item in sent])

    def outbox(self, *, most_values: int = 1000) -> Outbox:
        return Outbox(
            send=self.send,
            most_values=most_values,
            errors=(ConnectionError,),
            say_away=lambda error: self.said.append(f"away: {error}"),
            say_back=lambda num_late: self.said.append(f"back: {num_late}"),
            clock=lambda: self.now,
        )


def test_what_waits_goes_in_one_call():
    tracker = Tracker()
    outbox = tracker.outbox()
    for step in range(3):
        outbox.put(figures(step))
    assert tracker.calls == []
    assert outbox.deliver()
    assert tracker.calls == [[0, 1, 2]]
    assert outbox.deliver()
    assert tracker.num_tried == 1


@given(
    sizes=st.lists(st.integers(min_value=0, max_value=30), max_size=30),
    most_values=st.integers(min_value=1, max_value=40),
)
def test_calls_keep_their_limit_and_the_order_and_no_step_is_parted(sizes, most_values):
    tracker = Tracker()
    outbox = tracker.outbox(most_values=most_values)
    for step, size in enumerate(sizes):
        outbox.put(figures(step, num_values=size))
    assert outbox.deliver()
    assert [step for call in tracker.calls for step in call] == list(range(len(sizes)))
    for call in tracker.calls:
        assert len(call) == 1 or sum(sizes[step] for step in call) <= most_values


def test_an_outage_is_said_once_and_what_waited_comes_first_afterwards():
    tracker = Tracker()
    outbox = tracker.outbox()
    tracker.is_away = True
    for step in range(100):
        outbox.put(figures(step))
        outbox.deliver()
        tracker.now += 1.0
    assert tracker.said == ["away: refused"]
    # Pauses of 5, 10, 20, 40 s: tried at 0, 5, 15, 35, 75 s of the 100.
    assert tracker.num_tried == 5

    tracker.is_away = False
    tracker.now += 300.0
    outbox.put(figures(100))
    assert outbox.deliver()
    assert tracker.calls == [list(range(101))]
    assert tracker.said == ["away: refused", "back: 101"]
    assert outbox.num_waiting == 0


def test_a_pause_is_never_longer_than_five_minutes():
    tracker = Tracker()
    outbox = tracker.outbox()
    tracker.is_away = True
    outbox.put(figures(0))
    for _ in range(3600):
        outbox.deliver()
        tracker.now += 1.0
    # 5, 10, ... 160 s take 315 s, then 300 s each: 6 tries up to 155 s, and at 315, 615, ... 3315.
    assert tracker.num_tried == 6 + 11


def test_an_urgent_delivery_does_not_wait_for_the_pause():
    tracker = Tracker()
    outbox = tracker.outbox()
    tracker.is_away = True
    outbox.put(figures(0))
    assert not outbox.deliver()
    tracker.is_away = False
    assert not outbox.deliver()
    assert outbox.deliver(is_urgent=True)
    assert tracker.calls == [[0]]


def test_a_tracker_that_goes_away_between_two_calls_is_told_the_rest_later():
    tracker = Tracker()
    outbox = tracker.outbox(most_values=2)
    for step in range(4):
        outbox.put(figures(step))
    send = tracker.send

    def first_only(sent: Sequence[Figures]) -> None:
        send(sent)
        tracker.is_away = True

    outbox.send = first_only
    assert not outbox.deliver()
    assert outbox.num_waiting == 2
    tracker.is_away = False
    outbox.send = send
    assert outbox.deliver(is_urgent=True)
    assert tracker.calls == [[0, 1], [2, 3]]
