"""What a parent asks of an engine, and the sign of life that an engine gives."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from encore.core.files import temporary_path

_FOLDER = "engines"
_REACH = "reach"

#: A shard that failed on so many engines has failed for good.
MAX_ENGINES_PER_SHARD = 2


class EngineSpec(BaseModel):
    """What a parent asks of an engine.

    Attributes:
        name: Of the engine; another one for each start.
        slot: Which of the engines it is, from 0.
        of: How many engines there are.
        run_key: The run; an engine that makes another key of its model or data refuses. Empty: the
            engine says which run it is.
        code: Digest of the parent's code.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    slot: int
    num_engines: int
    run_key: str
    code_digest: str

    @property
    def label(self) -> str:
        """For people: ``engine 1 of 3``."""
        return f"engine {self.slot + 1} of {self.num_engines}"


class EngineHeartbeat(BaseModel):
    """What an engine says of itself.

    Attributes:
        engine: Its name.
        host: Its machine.
        devices: Its GPUs as CUDA_VISIBLE_DEVICES has them, or ``cpu``.
        state: ``waiting`` for a place, then ``starting`` until its model is loaded.
        beat: Requests finished so far.
        at_work: Rows finished of the shards in work, by index.
        done: Counts of the shards it has finished, by index.
        failed: Error of the shards it has given up, by index.
        num_rows: Rows in the shards it has finished.
        num_nulls: Of these, ratings that are null.
        error: Why it ended early.
    """

    engine: str
    host: str = ""
    devices: str = ""
    state: Literal["waiting", "starting", "working", "ended"] = "waiting"
    num_finished_requests: int = 0
    rows_by_open_shard: dict[int, int] = {}
    counts_by_finished_shard: dict[int, dict[str, Any]] = {}
    error_by_failed_shard: dict[int, str] = {}
    num_finished_rows: int = 0
    num_nulls: int = 0
    error: str = ""


class ShardLimit(BaseModel):
    """What a parent tells its engines of the run's horizon.

    Attributes:
        num_open_shards: Shards that may be taken, counted from the plan's first.
        is_final: Whether it stays so: an engine that has nothing to do need not wait.
        beat: While it is not final, another number shows that the parent is alive.
    """

    num_open_shards: int = sys.maxsize
    is_final: bool = True
    version: int = 0


def read_shard_limit(run_dir: Path) -> ShardLimit | None:
    """What the parent told last; None while it cannot be read. Without a word, all is open."""
    try:
        return ShardLimit.model_validate_json((run_dir / _FOLDER / _REACH).read_bytes())
    except FileNotFoundError:
        return ShardLimit()
    except (OSError, ValidationError):
        return None


def write_shard_limit(run_dir: Path, reach: ShardLimit) -> bool:
    """Tell all engines of a run, those that start later too; whether it could be written."""
    return _write(run_dir / _FOLDER / _REACH, reach)


def heartbeat_path(run_dir: Path, name: str) -> Path:
    """Where an engine's sign of life is."""
    return run_dir / _FOLDER / f"{name}.json"


def read_heartbeats(run_dir: Path) -> dict[str, EngineHeartbeat]:
    """The sign of life of every engine of a run, by name."""
    found = {}
    for path in sorted((run_dir / _FOLDER).glob("*.json")):
        with contextlib.suppress(OSError, ValidationError):  # removed, or being replaced
            found[path.stem] = EngineHeartbeat.model_validate_json(path.read_bytes())
    return found


def write_heartbeat(run_dir: Path, life: EngineHeartbeat) -> None:
    """Replace the sign of life; what cannot be written is tried again with the next one."""
    _write(heartbeat_path(run_dir, life.engine), life)


def _write(path: Path, message: BaseModel) -> bool:
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)  # a run's folder is its parent's to make
        with temporary_path(path) as temporary:
            temporary.write_text(message.model_dump_json(), encoding="utf-8")
            temporary.replace(path)
        return True
    return False


@dataclass(slots=True)
class SilenceTimer:
    """For how long engines have done nothing, by the watcher's own clock."""

    seen: dict[str, tuple[object, float]] = field(default_factory=dict)

    def seconds_silent(self, life: EngineHeartbeat) -> float:
        """Seconds since an engine finished a request, took work after it had none, or was seen."""
        sign = (life.num_finished_requests, life.state, bool(life.rows_by_open_shard))
        if self.seen.get(life.engine, (None, 0.0))[0] != sign:
            self.seen[life.engine] = (sign, time.monotonic())
        return time.monotonic() - self.seen[life.engine][1]
