"""A sharded run on disk: its manifest, its plan, and one verified file per shard.

Long work is done shard by shard (`encore.runs.shard_runner`). A run's folder holds:

    run.json                        the manifest: the run's identity, its key, its title
    shard-00003.<digest>.parquet    the rows of one shard
    took-00003.json                 the cost of a shard (calls, tokens, seconds) and its counts
    failed-00003.json               the error of the last failed attempt at a shard
    replies-00003.jsonl             replies of a server to a shard that is not finished
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from encore.core.errors import NO_ROOM, EncoreError, EveryShardError, InputError
from encore.core.files import file_sha256, publish, remove_file, temporary_path, write_json
from encore.core.versions import package_versions
from encore.runs.checked_shards import CHECKED_FILE, CheckedFooters, read_checked, record_checked
from encore.runs.shard_listing import SHARD_NAME, ShardListing

_FOOTER_KEY = "encore.shard"
#: Key of the counts in the file of a shard's cost.
_COUNTS = "counts"
_DIGEST_DIGITS = 32
#: Threads that check shards, and shards that a thread takes at a time. Python's lock bounds the
#: speed: measured with shards of 2 and 31 kB, six threads take 1.5 times as long as two.
_NUM_CHECKING_THREADS, _SHARDS_A_TASK = 2, 20
#: Beginnings of the names of all files in a run's folder, hidden temporary files included.
_NAME_PREFIXES = (
    *("locks", "engines", "shard-", "took-", "failed-", "replies-", "enough.json", CHECKED_FILE),
    ".",
)

ShardStateName = Literal["done", "missing", "damaged", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Consecutive pairs of the plan, from ``start`` to ``stop`` (exclusive)."""

    index: int
    start: int
    stop: int

    @property
    def num_pairs(self) -> int:
        """Return the number of pairs in the shard."""
        return self.stop - self.start


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


def run_key_of(identity: Mapping[str, Any]) -> str:
    """Return 16 hex digits of the SHA-256 of an identity in canonical JSON."""
    canonical = json.dumps(identity, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def differences(first: Any, second: Any) -> Iterator[tuple[str, str, str]]:
    """Yield every difference of two identities: the dotted path, and both values as JSON."""
    first_leaves, second_leaves = dict(_leaves(first)), dict(_leaves(second))
    for path in sorted(first_leaves | second_leaves):
        values = (first_leaves.get(path, "nothing"), second_leaves.get(path, "nothing"))
        if values[0] != values[1]:
            yield ".".join(path), *values


def _leaves(value: Any, *path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every value inside a JSON value with its path, as JSON text."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(inner, *path, name)
    else:
        yield path, json.dumps(value, ensure_ascii=False)


class RunManifest(BaseModel):
    """The manifest of a run: its identity, the key made of it, and facts outside the key.

    A kind of run is a subclass. It adds its key field, which holds ``run_key_of(identity)``.

    Attributes:
        identity: Everything that can change a row; ``identity["plan"]`` holds ``num_pairs`` and
            ``shard_size``.
        versions: Versions of the packages that created the run.
        synthetic: Names, for people, of the synthetic data and models among its inputs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    FILE: ClassVar[str]
    KEY_FIELD: ClassVar[str]
    #: The command that writes such runs, and its verb: ``rating``, ``rated``.
    COMMAND: ClassVar[str]
    DOING: ClassVar[str]
    DONE: ClassVar[str]
    UNIT: ClassVar[str] = "rows"
    #: Options of the Parquet writer. A file is read whole and its rows are mostly ids: column
    #: statistics and the Arrow schema would add a tenth to its size.
    PARQUET: ClassVar[Mapping[str, Any]] = {
        "compression": "zstd",
        "store_schema": False,
        "write_statistics": False,
    }
    #: Text columns of few values, which `check_values` reads as dictionaries.
    FEW_VALUES: ClassVar[Sequence[str]] = ()

    identity: dict[str, Any]
    versions: dict[str, str]
    synthetic: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """Return the run's key: 16 hex digits."""
        return run_key_of(self.identity)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with some fields changed; its key and its plan are computed anew."""
        copy = super().model_copy(update=update, deep=deep)
        for name in ("key", "shards"):
            vars(copy).pop(name, None)
        return copy

    @property
    def title(self) -> str:
        """Return the name of the run in a list of runs, e.g. ``judge NAME``."""
        raise NotImplementedError

    @property
    def rows_per_pair(self) -> int:
        """Return the number of rows that one pair takes in a shard."""
        raise NotImplementedError

    @property
    def num_pairs(self) -> int:
        """Return the number of pairs in the plan."""
        return int(self.identity["plan"]["num_pairs"])

    @property
    def shard_size(self) -> int:
        """Return the number of pairs in every shard except the last, which may be smaller."""
        return int(self.identity["plan"]["shard_size"])

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """Return the plan: all pairs in their order, cut into shards."""
        starts = range(0, self.num_pairs, self.shard_size)
        return tuple(
            Shard(index=index, start=start, stop=min(start + self.shard_size, self.num_pairs))
            for index, start in enumerate(starts)
        )

    def check(self, _folder: Path, /) -> None:
        """Check that the manifest agrees with itself and with the folder that it was read from.

        Raises:
            ValueError: The manifest contradicts itself or the folder.
        """
        if getattr(self, self.KEY_FIELD) != self.key:
            raise ValueError("its key is not the hash of its identity")
        if self.num_pairs < 1 or self.shard_size < 1:
            raise ValueError(
                f"a plan of {self.num_pairs} pairs in shards of {self.shard_size} pairs"
            )

    def check_values(self, _file: pq.ParquetFile, /) -> None:
        """Check the values in a shard's file, which is whole and belongs to this run.

        Raises:
            ValueError: The file holds a value that is not valid.
        """


class JudgedManifest(RunManifest):
    """The manifest of a run of a judge."""

    @property
    def judge(self) -> str:
        """Return the judge's name."""
        return str(self.identity["judge"]["name"])

    @property
    def title(self) -> str:
        """Return the judge's name after the word judge, which is not said twice."""
        return self.judge if self.judge == "judge" else f"judge {self.judge}"


Manifest = TypeVar("Manifest", bound=RunManifest)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus(Generic[Manifest]):
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


# --- manifests ----------------------------------------------------------------------------------


def read_manifest(run_dir: Path, kind: type[Manifest]) -> Manifest:
    """Read the manifest of a run.

    Raises:
        EncoreError: It is missing or damaged, or its key does not follow from its identity.
    """
    path = run_dir / kind.FILE
    try:
        manifest = kind.model_validate_json(path.read_bytes())
        manifest.check(run_dir)
    except FileNotFoundError as error:
        raise EncoreError(
            f"run {run_dir.name}: {kind.FILE} is missing; run `{kind.COMMAND}` with the same "
            "parameters to write it again"
        ) from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise EncoreError(
            f"run {run_dir.name}: {kind.FILE} is damaged ({type(error).__name__}: {reason}); "
            f"delete that file and run `{kind.COMMAND}` with the same parameters: valid shards are "
            "kept"
        ) from error
    return manifest


def claim_folder(run_dir: Path, manifest: RunManifest) -> None:
    """Create a run's folder with its manifest, or check that it already belongs to this run.

    Raises:
        InputError: The folder holds another run, or something else.
        EncoreError: Its manifest is damaged.
    """
    check_folder(run_dir, manifest)
    if not (run_dir / manifest.FILE).is_file():
        run_dir.mkdir(parents=True, exist_ok=True)
        write_json(run_dir / manifest.FILE, manifest)


def check_folder(run_dir: Path, manifest: RunManifest) -> None:
    """Check that a folder, if it exists, holds this run and nothing else.

    Raises:
        InputError: The folder holds another run, or something else.
        EncoreError: Its manifest is damaged.
    """
    problem = ""
    manifest_path, names = run_dir / manifest.FILE, list[str]()
    if not manifest_path.is_file() and run_dir.is_dir():
        # If another process begins the run before this listing, its manifest is there to be read.
        names = sorted(path.name for path in run_dir.iterdir())
    if manifest_path.is_file():
        recorded = read_manifest(run_dir, type(manifest))
        if recorded.key != manifest.key:
            problem = f"holds the run {recorded.key} ({recorded.title})"
    elif run_dir.is_file():  # exists() would see a folder that another thread just made
        problem = "this is a file"
    else:
        if foreign := [name for name in names if not name.startswith(_NAME_PREFIXES)]:
            problem = f"a directory with other things in it ({foreign[0]})"
        # Shards without a manifest may be of this run, whose manifest was lost.
        for path in map(run_dir.joinpath, filter(SHARD_NAME.fullmatch, names)):
            with contextlib.suppress(pa.ArrowException, OSError, KeyError, ValueError):
                key = _read_footer(pq.read_metadata(path))["run_key"]
                if key != manifest.key:
                    problem = f"holds a shard of run {key}"
    if problem:
        raise InputError(
            f"{run_dir}: {problem}; run {manifest.key} is of another model, other data or another "
            "plan: name a new or empty folder with --out"
        )


def list_runs(parent: Path, kind: type[RunManifest]) -> tuple[Path, ...]:
    """Return the run folders in a folder, sorted by key: those with a manifest or a shard."""
    run_dirs = {path.parent for path in parent.glob(f"*/{kind.FILE}")}
    run_dirs |= {path.parent for path in parent.glob("*/shard-*.parquet")}
    return tuple(sorted(run_dirs))


def num_computed_pairs(run_dir: Path, manifest: RunManifest) -> int:
    """Return the number of pairs in the shards that have a file, which is not checked."""
    indices = ShardListing(run_dir).indices()
    return sum(shard.num_pairs for shard in manifest.shards if shard.index in indices)


def describe_run(run_dir: Path, kind: type[RunManifest]) -> str:
    """Return a run's key, title, number of pairs and date for a list of runs."""
    try:
        manifest = read_manifest(run_dir, kind)
    except EncoreError:
        return f"{run_dir.name} ({kind.FILE} damaged)"
    begun = datetime.fromtimestamp((run_dir / kind.FILE).stat().st_mtime, tz=UTC)
    num_pairs = num_computed_pairs(run_dir, manifest)
    return (
        f"{run_dir.name} ({manifest.title}, {num_pairs:,} of {manifest.num_pairs:,} pairs, "
        f"{begun:%Y-%m-%d})"
    )


def choose_run(parent: Path, kind: type[RunManifest], key: str | None = None) -> Path:
    """Return the only run in a folder, or the run whose key begins with ``key``.

    Raises:
        InputError: No run, several, or none that matches; the message lists them.
    """
    runs = list_runs(parent, kind)
    if not runs:
        raise InputError(
            f"{parent.parent}: no {parent.name} yet; run `{kind.COMMAND} {parent.parent}` first"
        )
    matching = [run_dir for run_dir in runs if run_dir.name.startswith(key or "")]
    if len(matching) == 1:
        return matching[0]
    listing = "; ".join(describe_run(run_dir, kind) for run_dir in runs)
    raise InputError(
        f"{parent.parent}: {len(matching)} runs match {key or 'any key'}; choose one by its key "
        f"(--run) or its folder: {listing}"
    )


# --- shards on disk -----------------------------------------------------------------------------


def run_status(
    run_dir: Path, kind: type[Manifest], *, checks_values: bool = True
) -> RunStatus[Manifest]:
    """Check every planned shard of a run: the digest of its bytes, its footer, its values.

    Args:
        run_dir: Folder of the run.
        kind: Kind of its manifest.
        checks_values: False leaves the values to the reader, who decodes the files anyway.

    Raises:
        EncoreError: The manifest is missing or damaged.
    """
    manifest = read_manifest(run_dir, kind)
    return RunStatus(
        run_dir=run_dir,
        manifest=manifest,
        shards=inspect_shards(run_dir, manifest, manifest.shards, checks_values=checks_values),
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
    footer = {
        **content.footer,
        **_identifying_footer(manifest, shard),
        "versions": package_versions(),
    }
    listing = listing or ShardListing(run_dir)
    cost = {**content.cost, _COUNTS: content.counts}
    try:
        with temporary_path(run_dir / f"shard-{shard.index:05d}") as temporary:
            with pq.ParquetWriter(temporary, content.table.schema, **manifest.PARQUET) as writer:
                writer.write_table(content.table)
                writer.add_key_value_metadata({_FOOTER_KEY: json.dumps(footer, sort_keys=True)})
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
    checks_values: bool = True,
) -> tuple[ShardState, ...]:
    """Check several shards as `run_status` does. By default the folder is listed."""
    listing = listing or ShardListing(run_dir)
    checked = read_checked(run_dir, run_key=manifest.key)

    def states_of(some_shards: Sequence[Shard]) -> list[ShardState]:
        return [
            state_of_shard(
                run_dir, manifest, shard, listing, checked=checked, checks_values=checks_values
            )
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
    checks_values: bool = True,
) -> ShardState:
    """Check one shard as `run_status` does, by its files in a listing.

    Of files that were ``checked`` before only the digest is checked.
    """
    paths = listing.files(shard.index)
    states = [
        _state_of_file(path, manifest, shard, checked.get(path.name), checks_values)
        for path in paths
    ]
    if not states:
        failure = recorded_failure(run_dir, shard)
        state: ShardStateName = "failed" if failure else "missing"
        return ShardState(index=shard.index, state=state, detail=failure)
    return min(states, key=lambda state: state.state != "done")  # the oldest valid file counts


def finished_shards(
    run_dir: Path, manifest: RunManifest, shards: Iterable[Shard]
) -> tuple[ShardState, ...]:
    """Return those of the given shards that are done. Only shards that have a file are read."""
    listing = ShardListing(run_dir)
    indices = listing.indices()
    shards_with_file = [shard for shard in shards if shard.index in indices]
    states = inspect_shards(run_dir, manifest, shards_with_file, listing=listing)
    return tuple(state for state in states if state.state == "done")


def _state_of_file(
    path: Path,
    manifest: RunManifest,
    shard: Shard,
    checked_footer: Mapping[str, Any] | None = None,
    checks_values: bool = True,
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
            footer = _checked_footer(content, manifest, shard, checks_values=checks_values)
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


def _checked_footer(
    content: bytes, manifest: RunManifest, shard: Shard, *, checks_values: bool
) -> dict[str, Any]:
    """Return the footer of a file that holds the rows of a shard.

    Raises:
        ValueError: The file is of another shard, or of other rows or values than expected.
    """
    num_rows = shard.num_pairs * manifest.rows_per_pair
    file = pq.ParquetFile(
        pa.BufferReader(content), read_dictionary=manifest.FEW_VALUES, pre_buffer=False
    )
    footer = _read_footer(file.metadata)
    for name, value in _identifying_footer(manifest, shard).items():
        if footer.get(name) != value:
            raise ValueError(f"its footer says {name} {footer.get(name)!r}, not {value!r}")
    if file.metadata.num_rows != num_rows:
        raise ValueError(f"it has {file.metadata.num_rows} rows, not {num_rows}")
    if checks_values:
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


def _read_footer(metadata: Any) -> dict[str, Any]:
    footer: dict[str, Any] = json.loads((metadata.metadata or {})[_FOOTER_KEY.encode()])
    return footer


def recorded_failure(run_dir: Path, shard: Shard) -> str:
    """Return the error of the last failed attempt at a shard; empty if no attempt failed."""
    try:
        failure = json.loads(_failure_path(run_dir, shard.index).read_text(encoding="utf-8"))
        return str(failure["error"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError):
        return "the record of the failure is unreadable"
