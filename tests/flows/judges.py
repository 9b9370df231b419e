"""Real judges with one thing made to go wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from encore.judges.base import Judge, JudgeIdentity, ProgressHook, Reply
from encore.judges.chat import ChatTokenizer

Fault = Callable[[ProgressHook], ProgressHook]


class FirstReplyGoesWrong:
    """A judge whose first generation meets a fault at its first finished reply."""

    def __init__(self, judge: Judge, fault: Fault) -> None:
        """Wrap a judge."""
        self._judge = judge
        self._fault = fault
        self._lock = threading.Lock()
        self._is_first = True

    @property
    def identity(self) -> JudgeIdentity:
        """The judge's own."""
        return self._judge.identity

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The judge's own."""
        return self._judge.tokenizer

    def start(self) -> None:
        """Load the judge."""
        self._judge.start()

    def reply(
        self, prompts: Sequence[Sequence[int]], *, max_reply_tokens: int, on_progress: ProgressHook
    ) -> list[Reply]:
        """The judge's own replies, but for the fault."""
        with self._lock:
            is_first, self._is_first = self._is_first, False
        hook = self._fault(on_progress) if is_first else on_progress
        return self._judge.reply(prompts, max_reply_tokens=max_reply_tokens, on_progress=hook)

    def close(self) -> None:
        """Close the judge."""
        self._judge.close()


def stalls_for(seconds: float) -> Fault:
    """The generation stands still for a while."""

    def fault(on_progress: ProgressHook) -> ProgressHook:
        def hook(num_done: int) -> None:
            if num_done:
                time.sleep(seconds)
            on_progress(num_done)

        return hook

    return fault


def breaks_with(error: Exception) -> Fault:
    """The generation raises."""

    def fault(on_progress: ProgressHook) -> ProgressHook:
        def hook(num_done: int) -> None:
            if num_done:
                raise error
            on_progress(num_done)

        return hook

    return fault
