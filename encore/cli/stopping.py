"""How a long command is stopped from outside."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block like Ctrl-C does: finished work is kept, the exit code is 130."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
