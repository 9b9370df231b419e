"""Files by which a supervisor and its engines talk: specs, heartbeats and the shard limit.

Every message is one small JSON file in ``RUN/engines/`` that is replaced as a whole. A reader that
cannot read a file skips it and reads again later. All engines of a run have the same code
(`EngineSpec.code_digest`), so the format may change between versions.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from encore.core.files import temporary_path

_ENGINES_DIR = "engines"
_LIMIT_FILE = "shard-limit"

#: Name, in the cost of a shard, of the engine that computed it.
ENGINE_COST = "engine"
#: A shard that failed on this many engines has failed for good.
MAX_ENGINES_PER_SHARD = 2


class EngineSpec(BaseModel):
    """The part of a run that a supervisor gives to one engine.

    Attributes:
        name: Unique for each start, e.g. ``2-9f3c01ab``.
        slot: Position among the run's engines, from 0 to ``num_engines - 1``.
        num_engines: Number of engines in the run.
        run_key: Key of the run to join. Empty for the first engine, which creates the run.
        code_digest: Digest of the supervisor's code. An engine with other code refuses to start.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    slot: int
    num_engines: int
    run_key: str
    code_digest: str

    @property
    def label(self) -> str:
        """Return the name for people, e.g. ``engine 1 of 3``."""
        return f"engine {self.slot + 1} of {self.num_engines}"


class EngineHeartbeat(BaseModel):
    """The latest state of one engine, rewritten every two seconds while it works.

    Attributes:
        engine: Name of the engine (`EngineSpec.name`).
        host: Name of its machine.
        devices: Its GPUs as in CUDA_VISIBLE_DEVICES, or ``cpu``.
        state: ``waiting`` for a worker, ``starting`` while the model loads, ``working``, ``ended``,
            ``lost`` if its model or its GPU died: another process may go on.
        num_finished_requests: Requests finished since the start. It only grows.
        wait_seconds: Time of waits for a server that was away (`Job.wait_seconds`). It only grows.
        rows_by_open_shard: Rows finished so far of each shard at work, by shard index.
        failed_shards: Shards that this engine gave up, whose errors the run's files have, or at
            which it was lost.
        num_finished_shards: Shards that it has finished.
        num_finished_rows: Rows in these shards.
        num_nulls: Null ratings among these rows.
        error: Error that ended the engine early; empty without one.
    """

    engine: str
    host: str = ""
    devices: str = ""
    state: Literal["waiting", "starting", "working", "ended", "lost"] = "waiting"
    num_finished_requests: int = 0
    wait_seconds: float = 0.0
    rows_by_open_shard: dict[int, int] = {}
    failed_shards: list[int] = []
    num_finished_shards: int = 0
    num_finished_rows: int = 0
    num_nulls: int = 0
    error: str = ""


class ShardLimit(BaseModel):
    """The limit up to which engines may take shards. The supervisor raises it as the run proceeds.

    Attributes:
        num_open_shards: Engines may take shards 0 to ``num_open_shards - 1``.
        is_final: True if the limit will not rise again. An idle engine then ends.
        version: Grows with every write, so that engines see that the supervisor is alive.
    """

    num_open_shards: int = sys.maxsize
    is_final: bool = True
    version: int = 0


def read_shard_limit(run_dir: Path) -> ShardLimit | None:
    """Read the supervisor's current limit.

    Returns:
        All shards if the supervisor has written no limit. None if the file cannot be read now.
    """
    try:
        return ShardLimit.model_validate_json((run_dir / _ENGINES_DIR / _LIMIT_FILE).read_bytes())
    except FileNotFoundError:
        return ShardLimit()
    except (OSError, ValidationError):
        return None


def write_shard_limit(run_dir: Path, limit: ShardLimit) -> bool:
    """Write the limit for all engines of a run. Return False if the disk refused it."""
    return _write(run_dir / _ENGINES_DIR / _LIMIT_FILE, limit)


def heartbeat_path(run_dir: Path, name: str) -> Path:
    """Return the path of an engine's heartbeat."""
    return run_dir / _ENGINES_DIR / f"{name}.json"


def read_heartbeats(run_dir: Path) -> dict[str, EngineHeartbeat]:
    """Read the heartbeat of every engine of a run, by engine name. Unreadable files are skipped."""
    heartbeats = {}
    for path in sorted((run_dir / _ENGINES_DIR).glob("*.json")):
        with contextlib.suppress(OSError, ValidationError):
            heartbeats[path.stem] = EngineHeartbeat.model_validate_json(path.read_bytes())
    return heartbeats


def write_heartbeat(run_dir: Path, heartbeat: EngineHeartbeat) -> None:
    """Replace an engine's heartbeat. If the disk refuses it, the next heartbeat follows soon."""
    _write(heartbeat_path(run_dir, heartbeat.engine), heartbeat)


def _write(path: Path, message: BaseModel) -> bool:
    """Replace a message without waiting for the disk: messages need not survive a crash."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)  # only the supervisor creates the run's own folder
        with temporary_path(path) as temporary:
            temporary.write_text(message.model_dump_json(), encoding="utf-8")
            temporary.replace(path)
        return True
    return False


class SilenceTimer:
    """Measure how long each engine has made no progress, by the reader's own clock.

    The clocks of two machines may differ, so heartbeats hold no times.
    """

    def __init__(self) -> None:
        """Start without any engine."""
        self._last_progress: dict[str, tuple[object, float]] = {}

    def seconds_silent(self, heartbeat: EngineHeartbeat) -> float:
        """Return the seconds since this engine last made progress, or was first seen.

        Progress is a finished request, a longer wait for a server that is away, a new state, or
        the first shard of an idle engine.
        """
        progress = (
            heartbeat.num_finished_requests,
            heartbeat.wait_seconds,
            heartbeat.state,
            bool(heartbeat.rows_by_open_shard),
        )
        name = heartbeat.engine
        if self._last_progress.get(name, (None, 0.0))[0] != progress:
            self._last_progress[name] = (progress, time.monotonic())
        return time.monotonic() - self._last_progress[name][1]
