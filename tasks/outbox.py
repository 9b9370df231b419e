"""Figures on their way to a tracker: sent many at a time, kept while it does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from encore.training.records import CheckpointRecord

_FIRST_WAIT_SECONDS = 5.0
_LONGEST_WAIT_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Metrics of one step by name, and the checkpoint that they describe, if they do.

    Attributes:
        step: The training step.
        timestamp_ms: When they were measured, fixed here: sending them twice sends the same.
        values: Metrics by name.
        checkpoint: The checkpoint whose model they belong to.
    """

    step: int
    timestamp_ms: int
    values: Mapping[str, float]
    checkpoint: CheckpointRecord | None = None


@dataclass(slots=True, kw_only=True)
class Outbox:
    """An ordered queue in front of a tracker that may be away for a while.

    A failed sending is said once and tried again after a pause that doubles, so that a tracker that
    hangs costs a training little; everything waits in memory until then.

    Attributes:
        send: Delivers figures whole or raises; may be given the same ones again.
        most_values: Of how many values one call may consist at most.
        errors: What `send` raises while the tracker is away.
        say_away: Told once for each time the tracker is away, with the error.
        say_back: Told when it answers again, with the number of figures that waited.
        clock: Seconds that only grow.
    """

    send: Callable[[Sequence[Figures]], None]
    most_values: int
    errors: tuple[type[Exception], ...]
    say_away: Callable[[Exception], None]
    say_back: Callable[[int], None]
    clock: Callable[[], float] = time.monotonic
    _waiting: list[Figures] = field(default_factory=list)
    _wait_seconds: float = 0.0
    _not_before: float = 0.0

    @property
    def num_waiting(self) -> int:
        """How many figures are not delivered yet."""
        return len(self._waiting)

    def put(self, figures: Figures) -> None:
        """Add to the end of the queue."""
        self._waiting.append(figures)

    def deliver(self, *, is_urgent: bool = False) -> bool:
        """Send everything that waits; during an outage only when the pause is over, or urgently.

        Returns:
            Whether nothing waits any more.
        """
        if self._wait_seconds and not is_urgent and self.clock() < self._not_before:
            return False
        num_late = len(self._waiting)
        try:
            while self._waiting:
                num_next = self._num_of_next_call()
                self.send(tuple(self._waiting[:num_next]))
                del self._waiting[:num_next]
        except self.errors as error:
            self._pause(error)
            return False
        if self._wait_seconds:
            self._wait_seconds = 0.0
            self.say_back(num_late)
        return True

    def _num_of_next_call(self) -> int:
        """As many of the first figures as fit into one call, at least one."""
        num_values = 0
        for position, figures in enumerate(self._waiting):
            num_values += len(figures.values)
            if num_values > self.most_values and position:
                return position
        return len(self._waiting)

    def _pause(self, error: Exception) -> None:
        if not self._wait_seconds:
            self.say_away(error)
        self._wait_seconds = min(
            max(2 * self._wait_seconds, _FIRST_WAIT_SECONDS), _LONGEST_WAIT_SECONDS
        )
        self._not_before = self.clock() + self._wait_seconds
