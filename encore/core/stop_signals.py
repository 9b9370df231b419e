"""Functions that a signal to a command calls: they stop work in threads of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_stop_functions: list[Callable[[], None]] = []


@contextmanager
def stop_on_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Inside the block, have a signal to the command call ``stop`` before it ends the command."""
    _stop_functions.append(stop)
    try:
        yield
    finally:
        _stop_functions.remove(stop)


def call_stops() -> None:
    """Call every function that `stop_on_signal` holds."""
    for stop in _stop_functions:
        stop()
