"""A judge for tests with several processes, steered by orders.

Its rating depends on the prompt alone. It logs its events, so that a test can count how often each
shard was rated, and by which process.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from encore.core.errors import JudgeUnavailableError
from encore.judges.base import Prompt, Reply
from tests.distributed.orders import FOLDER, WHO, Control, names_of_this_process
from tests.worlds.judges import ScriptedJudge, hashed_score


class SteeredJudge(ScriptedJudge):
    """Judge that waits instead of computing, one generation at a time."""

    def __init__(self, config: object = None) -> None:
        """Accept the config that every backend gets, and ignore it."""
        folder = os.environ.get(FOLDER)
        self._control = Control(Path(folder)) if folder else None
        self._lock = threading.Lock()
        self._is_loaded = False
        self._num_begun = 0
        revisions: dict[str, str] = self._orders.get("revision", {})
        names = [name for name in names_of_this_process() if name in revisions]
        super().__init__(
            name="steered", revision=revisions[names[0]] if names else "1", reads_texts=True
        )

    def start(self) -> None:
        with self._lock:
            self._load()

    def reply(self, prompts: Sequence[Prompt], **options: Any) -> list[Reply]:
        match = re.search(r"Question (\w+)", str(prompts[0]))
        shard = match.group(1) if match else ""
        with self._lock:
            self._load()
            self._log("began", shard)
            self._num_begun += 1
            self._meet_fault(shard)
            seconds = self._orders.get("seconds", 0.0) / len(prompts)

            def wait_and_score(prompt: str) -> str:
                time.sleep(seconds)
                return hashed_score(prompt)

            self.script = wait_and_score
            replies = super().reply(prompts, **options)
            self._log("rated", shard)
        return replies

    @property
    def _orders(self) -> dict[str, Any]:
        return self._control.orders if self._control else {}

    def _log(self, event: str, shard: str = "") -> None:
        if self._control:
            self._control.log(event, shard)

    def _load(self) -> None:
        if not self._is_loaded:
            time.sleep(self._orders.get("load_seconds", 0.0))
            if _is_named_in(self._orders.get("cannot_load", ())):
                raise JudgeUnavailableError("judge 'steered': its weights do not load")
            self._is_loaded = True
            self._log("loaded")

    def _meet_fault(self, shard: str) -> None:
        orders, control = self._orders, self._control
        if control is None:
            return
        if _is_named_in(orders.get("freezes", ())) and not _has_hung(control):
            control.log("hung", shard)
            _freeze()
        if self._num_begun == orders.get("dies_at"):
            control.log("died", shard)
            raise RuntimeError("the generation failed") from EngineDeadError("see stack trace")
        num_failures = orders.get("fails", {}).get(shard, 0)
        if num_failures and num_failures > sum(
            event["shard"] == shard for event in control.events("failed")
        ):
            control.log("failed", shard)
            raise RuntimeError(f"pair {shard}: the device fell off the bus")


class EngineDeadError(Exception):
    """The error that vLLM raises when its engine process is gone; it has this name there."""


def _is_named_in(names: Collection[str]) -> bool:
    return bool(set(names) & set(names_of_this_process()))


def _has_hung(control: Control) -> bool:
    return any(event["who"] == os.environ.get(WHO, "") for event in control.events("hung"))


def _freeze() -> None:
    """Wait for ever in C code that holds the interpreter's lock, as a GPU driver may."""
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(128)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
