"""The opened rating run of a flow run: one judge and one pairs table for all its shard tasks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from encore.config import RatingConfig
from encore.data.study import open_study
from encore.rating import RatingRun, open_run
from tasks.errors import RatingStoppedError

_Key = tuple[Path, str]


@dataclass(slots=True)
class SharedRun:
    """A rating run that is opened by the first task that asks for it.

    ``fatal`` is an error that every further shard would meet: they fail with it at once, instead
    of each starting an engine for minutes to find out.
    """

    study: Path
    config: RatingConfig
    fatal: Exception | None = None
    num_users: int = 0
    _run: RatingRun | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self) -> RatingRun:
        """The opened run.

        Raises:
            EncoreError: It cannot be opened, or an earlier shard met a fatal error.
        """
        with self._lock:
            if self.fatal is not None:
                raise self.fatal
            if self._run is None:
                self._run = open_run(open_study(self.study), self.config)
            return self._run

    def cancel(self) -> None:
        """Interrupt the shards at work; their engine is discarded, written shards are kept."""
        if self._run is not None:
            self._run.cancelled.set()

    def close(self) -> None:
        """Stop the judge's engine and free its memory."""
        with self._lock:
            if self._run is not None:
                self._run.judge.close()


_OPEN: dict[_Key, SharedRun] = {}
_OPEN_LOCK = threading.Lock()


@contextlib.contextmanager
def keep_run_open(study: Path, config: RatingConfig) -> Iterator[None]:
    """Share one opened run among the tasks of a block; close its judge on any way out.

    Two flow runs of one process that rate the same thing share it, and the last one closes it.
    """
    key = _key(study, config)
    with _OPEN_LOCK:
        shared = _OPEN.setdefault(key, SharedRun(study=study, config=config))
        shared.num_users += 1
    is_last = False
    try:
        yield
    finally:
        with _OPEN_LOCK:
            shared.num_users -= 1
            is_last = shared.num_users == 0
            if is_last:
                del _OPEN[key]
        if is_last:
            shared.cancel()  # does nothing when all shards are through
            shared.close()


def shared_run(study: Path, config: RatingConfig) -> SharedRun:
    """The run that `keep_run_open` shares.

    Raises:
        RatingStoppedError: The flow run that shared it is over.
    """
    with _OPEN_LOCK:
        shared = _OPEN.get(_key(study, config))
    if shared is None:
        raise RatingStoppedError(
            f"study {study}: the flow run that opened this rating run is over; run the flow again"
        )
    return shared


def _key(study: Path, config: RatingConfig) -> _Key:
    return study.resolve(), config.model_dump_json()
