"""What a signal stops besides the main thread: work in threads that see no Python exception."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_stops: list[Callable[[], None]] = []


@contextmanager
def stop_on_signal(stop: Callable[[], None]) -> Iterator[None]:
    """While it lasts, a signal to a command calls this before it ends the command."""
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)


def call_stops() -> None:
    """Call what is to be stopped."""
    for stop in _stops:
        stop()
