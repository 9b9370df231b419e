"""What a signal stops besides the main thread: work in threads that see no Python exception."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_stops: list[Callable[[], None]] = []


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """While it lasts, a signal to a command calls this before it ends the command."""
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)


def stop_threads() -> None:
    """Call what is to be stopped."""
    for stop in _stops:
        stop()
