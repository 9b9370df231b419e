"""A real judge whose first generation goes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from encore.judges.base import Judge, ProgressHook, Reply

#: What happens at the first finished reply.
Fault = Callable[[], None]


class FirstReplyGoesWrong:
    """The judge in everything but its first generation."""

    def __init__(self, judge: Judge, fault: Fault) -> None:
        self._judge, self._fault = judge, fault
        self._first = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._judge, name)

    def reply(self, prompts: Any, *, on_progress: ProgressHook, **options: Any) -> list[Reply]:
        is_first = self._first.acquire(blocking=False)

        def hook(num_done: int) -> None:
            if is_first and num_done:
                self._fault()
            on_progress(num_done)

        return self._judge.reply(prompts, on_progress=hook, **options)


def stalls_for(seconds: float) -> Fault:
    return lambda: time.sleep(seconds)


def breaks_with(error: Exception) -> Fault:
    def fault() -> None:
        raise error

    return fault
