"""Shards on disk as judging still writes them; `encore.runs` takes its place.

Layout of one run: ``run.json`` (what the run key is a hash of), one ``shard-00000.parquet`` per
shard with ``shard-00000.sha256`` beside it, ``failed-00000.json`` for a shard whose last attempt
failed, ``locks/`` for processes at work.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from encore.files import atomic_path, atomic_write_bytes, file_sha256

RUN_FILE = "run.json"
_FOOTER_KEY = "encore.shard"
ShardStateName = Literal["done", "missing", "damaged", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A run of consecutive pairs, ``start`` to ``stop`` (exclusive), in the plan's order."""

    index: int
    start: int
    stop: int

    @property
    def num_pairs(self) -> int:
        """How many pairs the shard holds."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """What a shard's file says of itself; its bytes are those that were written."""

    footer: Mapping[str, Any]
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """Where one shard stands, and why it is not done."""

    index: int
    state: ShardStateName
    detail: str = ""
    num_ratings: int = 0
    num_nulls: int = 0


def plan_shards(num_pairs: int, *, shard_size: int) -> tuple[Shard, ...]:
    """Cut ``num_pairs`` ordered pairs into shards of ``shard_size``; the last may be smaller."""
    starts = range(0, num_pairs, shard_size)
    return tuple(
        Shard(index=index, start=start, stop=min(start + shard_size, num_pairs))
        for index, start in enumerate(starts)
    )


def run_key_of(identity: Mapping[str, Any]) -> str:
    """16 hex digits of the SHA-256 of an identity in canonical JSON."""
    canonical = json.dumps(identity, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def shard_path(run_dir: Path, index: int) -> Path:
    """The Parquet file of a shard."""
    return run_dir / f"shard-{index:05d}.parquet"


def digest_path(run_dir: Path, index: int) -> Path:
    """The file that holds the SHA-256 of a shard's whole file, in `sha256sum` format."""
    return run_dir / f"shard-{index:05d}.sha256"


def failure_path(run_dir: Path, index: int) -> Path:
    """The record of a shard's last failure."""
    return run_dir / f"failed-{index:05d}.json"


def put_shard(
    run_dir: Path,
    shard: Shard,
    table: pa.Table,
    *,
    footer: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Put a shard on disk, whole or not at all: digest first, then the renamed data file.

    A crash in between leaves a digest without a file, which counts as missing.

    Args:
        run_dir: The run's folder.
        shard: Which one.
        table: Its rows.
        footer: What the file says of itself (see `inspect_file`) beside its place in the plan.
        options: Of the Parquet writer.
    """
    content = {**footer, "shard_index": shard.index, "num_pairs": shard.num_pairs}
    metadata = {_FOOTER_KEY: json.dumps(content, sort_keys=True)}
    path = shard_path(run_dir, shard.index)
    with atomic_path(path) as temporary:
        with pq.ParquetWriter(temporary, table.schema, **options) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata(metadata)
        digest = file_sha256(temporary)
        line = f"{digest}  {path.name}\n"
        atomic_write_bytes(digest_path(run_dir, shard.index), line.encode())
    failure_path(run_dir, shard.index).unlink(missing_ok=True)


def inspect_file(
    run_dir: Path, shard: Shard, *, run_key: str, num_rows: int
) -> ShardFile | ShardState:
    """A shard's file, or why it is none that may be read. The digest is always checked.

    Args:
        run_dir: The run's folder.
        shard: Which one.
        run_key: Of the run it must belong to.
        num_rows: Rows it must have.
    """
    path = shard_path(run_dir, shard.index)
    if not path.exists():
        return _without_file(run_dir, shard)
    try:
        expected = _recorded_digest(run_dir, shard)
        if expected is None:
            return _damaged(shard, "its .sha256 file is missing or empty")
        if file_sha256(path) != expected:
            return _damaged(shard, "its content does not match its SHA-256")
        return _check_footer(path, shard, run_key=run_key, num_rows=num_rows)
    except OSError as error:
        return _damaged(shard, f"it cannot be read ({error.strerror or error})")


def record_failure(run_dir: Path, shard: Shard, error: BaseException) -> None:
    """Remember why a shard failed, for `encore status`."""
    content = {
        "shard_index": shard.index,
        "error_type": type(error).__name__,
        "error": " ".join(str(error).split())[:500],
    }
    data = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    atomic_write_bytes(failure_path(run_dir, shard.index), data.encode())


@contextlib.contextmanager
def shard_lock(run_dir: Path, index: int) -> Iterator[bool]:
    """Whether this process may work on a shard; False when another one is at it.

    An advisory lock of the operating system, released even when its holder is killed.
    """
    locks = run_dir / "locks"
    locks.mkdir(exist_ok=True)
    with (locks / f"shard-{index:05d}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def remove_stale_temporaries(run_dir: Path, index: int) -> None:
    """Delete what a killed process left of this shard. Call with the shard's lock held."""
    for path in run_dir.glob(f".shard-{index:05d}.*"):
        path.unlink(missing_ok=True)


def _without_file(run_dir: Path, shard: Shard) -> ShardState:
    try:
        failure = json.loads(failure_path(run_dir, shard.index).read_text(encoding="utf-8"))
        detail = f"{failure['error_type']}: {failure['error']}"
    except FileNotFoundError:
        return ShardState(index=shard.index, state="missing")
    except (OSError, ValueError, KeyError, TypeError):
        detail = "the record of the failure is unreadable"
    return ShardState(index=shard.index, state="failed", detail=detail)


def _recorded_digest(run_dir: Path, shard: Shard) -> str | None:
    try:
        words = digest_path(run_dir, shard.index).read_text(encoding="ascii").split()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return words[0] if words else None


def _read_footer(metadata: Any) -> dict[str, Any]:
    footer: dict[str, Any] = json.loads((metadata.metadata or {})[_FOOTER_KEY.encode()])
    return footer


def _check_footer(
    path: Path, shard: Shard, *, run_key: str, num_rows: int
) -> ShardFile | ShardState:
    try:
        metadata = pq.read_metadata(path)
        footer = _read_footer(metadata)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        return _damaged(shard, f"its Parquet footer is unreadable ({error})")
    expected = {
        "run_key": run_key,
        "shard_index": shard.index,
        "num_pairs": shard.num_pairs,
    }
    for name, value in expected.items():
        if footer.get(name) != value:
            return _damaged(shard, f"its footer says {name} {footer.get(name)!r}, not {value!r}")
    if metadata.num_rows != num_rows:
        return _damaged(shard, f"it has {metadata.num_rows} rows, not {num_rows}")
    return ShardFile(footer=footer, num_rows=num_rows)


def _damaged(shard: Shard, detail: str) -> ShardState:
    return ShardState(index=shard.index, state="damaged", detail=detail)
