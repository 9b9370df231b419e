"""A sharded run on disk: one verified file per shard.

Long work is done shard by shard (`encore.runs.worker`). A run's folder holds:

    run.json                        the manifest (`encore.runs.manifest`)
    shard-00003.<digest>.parquet    the rows of one shard
    took-00003.json                 the cost of a shard (calls, tokens, seconds) and its counts
    failed-00003.json               the error of the last failed attempt at a shard
    replies-00003.jsonl             replies to a shard that is not finished
    checked.json                    shards whose values were checked (`encore.runs.checked_shards`)
    locks/                          locks of the shards at work

These files alone say what is done. A shard is done when it has a file whose name carries the
SHA-256 of its bytes (32 digits) and whose footer belongs to this run. Data and digest become
visible with one rename, so neither a crash nor a second writer leaves a damaged shard: two writers
leave two whole files, and every reader takes the older one. The lock only saves work. The cost of
a shard is not in its file: the same rows are the same bytes wherever they were made. It is written
just before the shard, under a name that is known: while no process has written it, nobody needs to
list the folder in order to know that the shard is not done.

One file is replaced: that of a shard whose failed prompts were asked again (`encore rate
--retry-failed-prompts`). Under the shard's lock the new file is written, then the old one removed.
A crash between the two leaves both; the old one counts, and the next retry removes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from encore.core.errors import NO_ROOM, EncoreError, EveryShardError
from encore.core.files import file_sha256, publish, remove_file, temporary_path, write_json
from encore.core.number_text import counted
from encore.core.shown_record import ShownRecord
from encore.core.versions import package_versions
from encore.runs.checked_shards import CheckedFooters, read_checked, record_checked
from encore.runs.manifest import (
    FOOTER_KEY,
    Manifest,
    RunManifest,
    Shard,
    read_footer,
    read_manifest,
)
from encore.runs.shard_listing import SHARD_NAME, ShardListing

#: Key of the counts in the file of a shard's cost.
_COUNTS = "counts"
_DIGEST_DIGITS = 32
#: Threads that check shards, and shards that a thread takes at a time. Python's lock bounds the
#: speed: measured with shards of 2 and 31 kB, six threads take 1.5 times as long as two.
_NUM_CHECKING_THREADS, _SHARDS_A_TASK = 2, 20
ShardStateName = Literal["done", "missing", "damaged", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTable:
    """The computed rows of one shard.

    Attributes:
        table: The rows, in the plan's order.
        footer: Numbers stored in the footer of the shard's file.
        cost: Values stored beside the file: calls, tokens, seconds.
        counts: Numbers for the report of the call that computed the shard, stored beside the file.
    """

    table: pa.Table
    footer: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """The state of one shard.

    Attributes:
        index: Position of the shard in the plan.
        state: ``done``, ``missing``, ``damaged`` or ``failed``.
        detail: Why the shard is not done.
        path: The file to read, if it is done.
        sha256: All 64 hex digits of that file's SHA-256.
        footer: The numbers in that file's footer, together with the shard's cost.
        num_rows: Rows in that file.
        action: What the call that returned this state did: the manifest's ``DONE`` verb,
            ``reused``, ``busy`` (another process works on it) or ``closed`` (the stop rule does
            not allow it). Empty if it only looked.
        counts: `ShardTable.counts` of the call that computed the shard.
    """

    index: int
    state: ShardStateName
    detail: str = ""
    path: Path | None = None
    sha256: str = ""
    footer: Mapping[str, Any] = field(default_factory=dict)
    num_rows: int = 0
    action: str = ""
    counts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunStatus(ShownRecord, Generic[Manifest]):
    """The state of every planned shard of one run, read from its files."""

    run_dir: Path
    manifest: Manifest
    shards: tuple[ShardState, ...]

    @property
    def is_complete(self) -> bool:
        """Return True if every planned shard is done."""
        return all(shard.state == "done" for shard in self.shards)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the files of the shards that are done: the only ones to read rows from."""
        return tuple(shard.path for shard in self.shards if shard.path is not None)

    @property
    def unfinished(self) -> tuple[ShardState, ...]:
        """Return the shards that are missing, damaged or failed."""
        return tuple(shard for shard in self.shards if shard.state != "done")

    def count(self, state: ShardStateName) -> int:
        """Return the number of shards in a state."""
        return sum(shard.state == state for shard in self.shards)

    def total(self, name: str) -> int:
        """Return the sum of a number in the footers of all shards that are done."""
        return sum(int(shard.footer.get(name, 0)) for shard in self.shards)


def run_status(run_dir: Path, kind: type[Manifest]) -> RunStatus[Manifest]:
    """Check every planned shard of a run: the digest of its bytes, its footer, its values.

    Args:
        run_dir: Folder of the run.
        kind: Kind of its manifest.

    Raises:
        EncoreError: The manifest is missing or damaged.
    """
    manifest = read_manifest(run_dir, kind)
    return RunStatus(
        run_dir=run_dir,
        manifest=manifest,
        shards=inspect_shards(run_dir, manifest, manifest.shards),
    )


def write_shard(
    run_dir: Path,
    manifest: RunManifest,
    shard: Shard,
    content: ShardTable,
    *,
    listing: ShardListing | None = None,
    replaces_done: bool = False,
) -> ShardState:
    """Write a shard, whole or not at all, and read it back.

    Args:
        run_dir: Folder of the run.
        manifest: Manifest of the run.
        shard: The shard of the plan.
        content: The shard's rows, its cost and its counts.
        listing: The caller's listing of the run's shards; by default the folder is listed.
        replaces_done: True removes the shard's earlier files then; the caller holds its lock.

    Returns:
        The state of the shard. The oldest valid file counts: another process may have written it.

    Raises:
        EveryShardError: The disk is full.
        EncoreError: The written file is not what the plan expects.
    """
    listing = listing or ShardListing(run_dir)
    try:
        written = _write_files(
            run_dir, manifest, shard, content, listing=listing, replaces_done=replaces_done
        )
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise EveryShardError(
            f"{run_dir}: the disk was full while shard {shard.index} was written; finished shards "
            "are kept; make room and run the same command again"
        ) from error
    remove_file(_failure_path(run_dir, shard.index))
    state = state_of_shard(run_dir, manifest, shard, listing)
    if state.state != "done":
        raise EncoreError(f"shard {shard.index}: written, but {state.detail}; run it again")
    journal_path(run_dir, shard.index).unlink(missing_ok=True)
    # Remove damaged files, and the file just written if another process was first.
    for path in listing.files(shard.index):
        if path == state.path:
            continue
        if path == written or _state_of_file(path, manifest, shard).state != "done":
            remove_file(path)
    return state


def _write_files(
    run_dir: Path,
    manifest: RunManifest,
    shard: Shard,
    content: ShardTable,
    *,
    listing: ShardListing,
    replaces_done: bool,
) -> Path:
    """Write a shard's cost and then its rows; return the path of the rows, which has a digest."""
    footer = {
        **content.footer,
        **_identifying_footer(manifest, shard),
        "versions": package_versions(),
    }
    cost = {**content.cost, _COUNTS: content.counts}
    with temporary_path(run_dir / f"shard-{shard.index:05d}") as temporary:
        with pq.ParquetWriter(temporary, content.table.schema, **manifest.PARQUET) as writer:
            writer.write_table(content.table)
            writer.add_key_value_metadata({FOOTER_KEY: json.dumps(footer, sort_keys=True)})
        digest = file_sha256(temporary)[:_DIGEST_DIGITS]
        written = run_dir / f"shard-{shard.index:05d}.{digest}.parquet"
        is_contended = has_cost(run_dir, shard)
        write_json(_cost_path(run_dir, shard.index), cost, indent=None)
        publish(temporary, written)
    listing.add(shard.index, written)
    if is_contended or replaces_done:  # another process may have written it just before
        listing.renew(now=True)
    for path in listing.files(shard.index) if replaces_done else ():
        if path != written:
            remove_file(path)
    return written


def has_cost(run_dir: Path, shard: Shard) -> bool:
    """Return True if a process has written a shard or is just about to."""
    return _cost_path(run_dir, shard.index).exists()


def record_failure(run_dir: Path, shard: Shard, error: BaseException) -> None:
    """Record the error of a failed shard for `run_status`."""
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
    with contextlib.suppress(OSError):  # the failure matters more than its record
        write_json(_failure_path(run_dir, shard.index), {"error": reason})


def journal_path(run_dir: Path, index: int) -> Path:
    """Return the file that keeps the replies to a shard until the shard is written."""
    return run_dir / f"replies-{index:05d}.jsonl"


def kept_work(run_dir: Path, manifest: RunManifest) -> str:
    """Return what a later call finds: the number of finished shards, and of replies to others."""
    num_done = len(ShardListing(run_dir).indices())
    shards = f"{num_done:,} of {counted(len(manifest.shards), 'shard')}"
    return f"{' and '.join(filter(None, [shards, kept_replies(run_dir)]))} are kept"


def kept_replies(run_dir: Path) -> str:
    """Return how many replies of how many unfinished shards a later call finds; empty if none."""
    journals = [*run_dir.glob("replies-*.jsonl")]
    num_replies = sum(path.read_bytes().count(b"\n") for path in journals)
    if not num_replies:
        return ""
    replies = "1 reply" if num_replies == 1 else f"{num_replies:,} replies"
    shards = "an unfinished shard" if len(journals) == 1 else f"{len(journals)} unfinished ones"
    return f"{replies} of {shards}"


def _cost_path(run_dir: Path, index: int) -> Path:
    return run_dir / f"took-{index:05d}.json"


def _failure_path(run_dir: Path, index: int) -> Path:
    return run_dir / f"failed-{index:05d}.json"


def inspect_shards(
    run_dir: Path,
    manifest: RunManifest,
    shards: Sequence[Shard],
    *,
    listing: ShardListing | None = None,
) -> tuple[ShardState, ...]:
    """Check several shards as `run_status` does. By default the folder is listed."""
    listing = listing or ShardListing(run_dir)
    checked = read_checked(run_dir, run_key=manifest.key)

    def states_of(some_shards: Sequence[Shard]) -> list[ShardState]:
        return [
            state_of_shard(run_dir, manifest, shard, listing, checked=checked)
            for shard in some_shards
        ]

    batches = [shards[i : i + _SHARDS_A_TASK] for i in range(0, len(shards), _SHARDS_A_TASK)]
    with ThreadPoolExecutor(_NUM_CHECKING_THREADS) as pool:
        return tuple(chain.from_iterable(pool.map(states_of, batches)))


def state_of_shard(
    run_dir: Path,
    manifest: RunManifest,
    shard: Shard,
    listing: ShardListing,
    *,
    checked: CheckedFooters = MappingProxyType({}),
) -> ShardState:
    """Check one shard as `run_status` does, by its files in a listing.

    Of files that were ``checked`` before only the digest is checked.
    """
    paths = listing.files(shard.index)
    states = [_state_of_file(path, manifest, shard, checked.get(path.name)) for path in paths]
    if not states:
        failure = recorded_failure(run_dir, shard)
        state: ShardStateName = "failed" if failure else "missing"
        return ShardState(index=shard.index, state=state, detail=failure)
    return min(states, key=lambda state: state.state != "done")  # the oldest valid file counts


def _state_of_file(
    path: Path, manifest: RunManifest, shard: Shard, checked_footer: Mapping[str, Any] | None = None
) -> ShardState:
    """Return the state of a shard by one of its files: done, or damaged with the reason.

    With a footer of these bytes that was checked before only their digest is checked.
    """
    match = SHARD_NAME.fullmatch(path.name)
    assert match is not None
    try:
        content = path.read_bytes()  # once, for its digest and its values
        digest = hashlib.sha256(content).hexdigest()
        if not digest.startswith(match[2]):
            raise ValueError("its content does not match its SHA-256")
        if checked_footer is not None:
            footer = dict(checked_footer)
        else:
            footer = _checked_footer(content, manifest, shard)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        return ShardState(
            index=shard.index, state="damaged", detail=f"its file cannot be used: {error}"
        )
    with contextlib.suppress(OSError, ValueError):  # the cost need not be known
        footer |= json.loads(_cost_path(path.parent, shard.index).read_bytes())
    counts = footer.pop(_COUNTS, {})
    return ShardState(
        index=shard.index,
        state="done",
        path=path,
        sha256=digest,
        footer=footer,
        num_rows=shard.num_pairs * manifest.rows_per_pair,
        counts=counts,
    )


def _checked_footer(content: bytes, manifest: RunManifest, shard: Shard) -> dict[str, Any]:
    """Return the footer of a file that holds the rows of a shard.

    Raises:
        ValueError: The file is of another shard, or of other rows or values than expected.
    """
    num_rows = shard.num_pairs * manifest.rows_per_pair
    file = pq.ParquetFile(
        pa.BufferReader(content), read_dictionary=manifest.FEW_VALUES, pre_buffer=False
    )
    footer = read_footer(file.metadata)
    for name, value in _identifying_footer(manifest, shard).items():
        if footer.get(name) != value:
            raise ValueError(f"its footer says {name} {footer.get(name)!r}, not {value!r}")
    if file.metadata.num_rows != num_rows:
        raise ValueError(f"it has {file.metadata.num_rows} rows, not {num_rows}")
    manifest.check_values(file)
    return footer


def record_checked_shards(
    run_dir: Path, manifest: RunManifest, states: Iterable[ShardState]
) -> None:
    """Record the files of shards that were checked, values included, if they are done."""
    footers = {state.path.name: state.footer for state in states if state.path is not None}
    record_checked(run_dir, run_key=manifest.key, footers=footers)


def _identifying_footer(manifest: RunManifest, shard: Shard) -> dict[str, Any]:
    """Return the part of a shard's footer that says which shard of which run it is."""
    return {"run_key": manifest.key, "shard_index": shard.index, "num_pairs": shard.num_pairs}


def recorded_failure(run_dir: Path, shard: Shard) -> str:
    """Return the error of the last failed attempt at a shard; empty if no attempt failed."""
    try:
        failure = json.loads(_failure_path(run_dir, shard.index).read_text(encoding="utf-8"))
        return str(failure["error"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError):
        return "the record of the failure is unreadable"
