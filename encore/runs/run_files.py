"""A sharded run on disk: its manifest, its plan, and slices that are each one verified file.

Long work is done in slices (`encore.runs.shard_runner`). A run's folder holds:

    run.json                              the manifest: the run's identity and what it is called
    shard-00003.<digest>.parquet          the rows of one slice
    took-00003.json                       what a slice took: calls, tokens, seconds
    failed-00003.json                     why the last attempt at a slice failed
    locks/                                which slices are being worked on
    engines/                              what several engines tell each other (`engine_messages`)

What is done is read from these files and from nothing else. A slice is done when it has a file
whose name carries the SHA-256 of its bytes (32 digits) and whose footer belongs to this run. Data
and digest become visible with one rename, so no crash and no second writer leaves a damaged slice:
two writers leave two whole files, and every reader takes the first one. The lock only saves work.
What a slice took is not in its file: the same rows are the same bytes wherever they were made.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from encore.core.errors import NO_ROOM, EncoreError, EveryShardError, InputError
from encore.core.files import file_sha256, publish, temporary_path, write_json
from encore.core.versions import package_versions

_FOOTER_KEY = "encore.shard"
_DIGEST_DIGITS = 32
_SHARD_NAME = re.compile(r"shard-(\d{5})\.([0-9a-f]{32})\.parquet")
#: Beginnings of the names that a run writes into its folder, hidden temporary files included.
_OWN_NAMES = ("locks", "engines", "shard-", "took-", "failed-", "enough.json", ".")

ShardStateName = Literal["done", "missing", "damaged", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A slice of consecutive pairs, ``start`` to ``stop`` (exclusive), in the plan's spec."""

    index: int
    start: int
    stop: int

    @property
    def num_pairs(self) -> int:
        """How many pairs the slice holds."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTable:
    """The rows of one shard.

    ``footer`` is stored in its file, ``cost`` beside it, ``counts`` are for the report.
    """

    table: pa.Table
    footer: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, Any] = field(default_factory=dict)


def run_key_of(identity: Mapping[str, Any]) -> str:
    """16 hex digits of the SHA-256 of an identity in canonical JSON."""
    canonical = json.dumps(identity, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def differences(first: Any, second: Any) -> Iterator[tuple[str, str, str]]:
    """What two identities differ in: the place, and both values as JSON."""
    one, other = dict(_leaves(first)), dict(_leaves(second))
    for path in sorted(one | other):
        if one.get(path) != other.get(path):
            yield ".".join(path), one.get(path, "nothing"), other.get(path, "nothing")


def _leaves(value: Any, *path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """What a JSON value holds, as text, by its path."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(inner, *path, name)
    else:
        yield path, json.dumps(value, ensure_ascii=False)


class RunManifest(BaseModel):
    """A run's manifest: its identity, the key made of it, and facts that the key does not cover.

    A kind of run is a subclass. It adds its key field, which holds ``run_key_of(identity)``.
    ``identity["plan"]`` holds ``num_pairs`` and ``shard_size``. ``synthetic`` names, in words, what
    of the data and models is synthetic.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    FILE: ClassVar[str]
    KEY_FIELD: ClassVar[str]
    #: The command that writes such runs, and what it does to a shard: ``rating``, ``rated``.
    COMMAND: ClassVar[str]
    DOING: ClassVar[str]
    DONE: ClassVar[str]
    UNIT: ClassVar[str] = "rows"
    #: For the Parquet writer. A file is read whole and its rows are mostly ids: column statistics
    #: and the Arrow schema would add a tenth to its size.
    PARQUET: ClassVar[Mapping[str, Any]] = {
        "compression": "zstd",
        "store_schema": False,
        "write_statistics": False,
    }

    identity: dict[str, Any]
    versions: dict[str, str]
    synthetic: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The run's key: 16 hex digits."""
        return run_key_of(self.identity)

    @property
    def title(self) -> str:
        """What the run is called in a list to choose from, e.g. ``judge NAME``."""
        raise NotImplementedError

    @property
    def rows_per_pair(self) -> int:
        """Return the number of rows that one pair takes in a shard."""
        raise NotImplementedError

    @property
    def num_pairs(self) -> int:
        """Pairs in the plan."""
        return int(self.identity["plan"]["num_pairs"])

    @property
    def shard_size(self) -> int:
        """Pairs in every shard but perhaps the last."""
        return int(self.identity["plan"]["shard_size"])

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The plan: ordered pairs cut into shards; the last may be smaller."""
        starts = range(0, self.num_pairs, self.shard_size)
        return tuple(
            Shard(index=index, start=start, stop=min(start + self.shard_size, self.num_pairs))
            for index, start in enumerate(starts)
        )

    def check(self, _folder: Path, /) -> None:
        """Refuse a manifest that contradicts itself or the folder it was read in.

        Raises:
            ValueError: The contradiction.
        """
        if getattr(self, self.KEY_FIELD) != self.key:
            raise ValueError("its key is not the hash of its identity")
        if self.num_pairs < 1 or self.shard_size < 1:
            raise ValueError(
                f"a plan of {self.num_pairs} pairs in shards of {self.shard_size} pairs"
            )

    def check_values(self, _file: pq.ParquetFile, /) -> None:
        """Refuse a shard's file, whole and of this run, that holds a value that is not valid.

        Raises:
            ValueError: The value.
        """


class JudgedManifest(RunManifest):
    """The manifest of a run of a judge."""

    @property
    def judge(self) -> str:
        """The judge's name."""
        return str(self.identity["judge"]["name"])

    @property
    def title(self) -> str:
        """The judge."""
        return f"judge {self.judge}"


Manifest = TypeVar("Manifest", bound=RunManifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """The state of one shard; ``detail`` says why it is not done.

    A shard that is done has the file to read, its full SHA-256, its rows, and its footer together
    with what it took.
    ``action`` is what this call did: the manifest's ``DONE`` word, ``reused``, or ``busy`` for a
    shard that another process works on. ``counts`` are those of the `ShardTable` that was computed.
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
    """Every planned shard of one run, as its files say."""

    run_dir: Path
    manifest: Manifest
    shards: tuple[ShardState, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every planned shard is done."""
        return all(shard.state == "done" for shard in self.shards)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files of the shards that are done: the only ones that may be read."""
        return tuple(shard.path for shard in self.shards if shard.path is not None)

    @property
    def problems(self) -> tuple[ShardState, ...]:
        """The shards that are not done."""
        return tuple(shard for shard in self.shards if shard.state != "done")

    def count(self, state: ShardStateName) -> int:
        """How many shards are in a state."""
        return sum(shard.state == state for shard in self.shards)

    def total(self, name: str) -> int:
        """The sum of a number that the footers hold."""
        return sum(int(shard.footer.get(name, 0)) for shard in self.shards)


# --- manifests ----------------------------------------------------------------------------------


def read_manifest(run_dir: Path, kind: type[Manifest]) -> Manifest:
    """The manifest of a run.

    Raises:
        EncoreError: It is missing or damaged, or its key does not follow from it.
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
    """Make a run's folder with its manifest, or check that it is this run's already.

    Raises:
        InputError: The folder holds another run, or something else.
        EncoreError: Its manifest is damaged.
    """
    check_folder(run_dir, manifest)
    if not (run_dir / manifest.FILE).is_file():
        run_dir.mkdir(parents=True, exist_ok=True)
        write_json(run_dir / manifest.FILE, manifest)


def check_folder(run_dir: Path, manifest: RunManifest) -> None:
    """Refuse a folder that holds something else than this run; a folder that is not there is fine.

    Raises:
        InputError: The folder holds another run, or something else.
        EncoreError: Its manifest is damaged.
    """
    problem = ""
    # Listed first: if another process begins the run meanwhile, its manifest is there to be read.
    names = sorted(path.name for path in run_dir.iterdir()) if run_dir.is_dir() else []
    if (run_dir / manifest.FILE).is_file():
        found = read_manifest(run_dir, type(manifest))
        if found.key != manifest.key:
            problem = f"holds the run {found.key} ({found.title})"
    elif run_dir.is_file():  # exists() would see a folder that another thread just made
        problem = "this is a file"
    else:
        if others := [name for name in names if not name.startswith(_OWN_NAMES)]:
            problem = f"a directory with other things in it ({others[0]})"
        # Without a manifest it may hold this run's own shards, whose manifest was lost.
        for paths in _shard_files(run_dir).values():
            with contextlib.suppress(pa.ArrowException, OSError, KeyError, ValueError):
                key = _read_footer(pq.read_metadata(paths[0]))["run_key"]
                if key != manifest.key:
                    problem = f"holds a shard of run {key}"
    if problem:
        raise InputError(
            f"{run_dir}: {problem}; run {manifest.key} is of another model, other data or another "
            "plan: name a new or empty folder with --out"
        )


def list_runs(parent: Path, kind: type[RunManifest]) -> tuple[Path, ...]:
    """The folders of all runs in a folder, sorted by key: those with a manifest or a shard."""
    found = {path.parent for path in parent.glob(f"*/{kind.FILE}")}
    found |= {path.parent for path in parent.glob("*/shard-*.parquet")}
    return tuple(sorted(found))


def describe_run(run_dir: Path, kind: type[RunManifest]) -> str:
    """A run's key and title, for a list to choose from."""
    try:
        return f"{run_dir.name} ({read_manifest(run_dir, kind).title})"
    except EncoreError:
        return f"{run_dir.name} ({kind.FILE} damaged)"


def choose_run(parent: Path, kind: type[RunManifest], key: str | None = None) -> Path:
    """The only run in a folder, or the one whose key begins with ``key``.

    Raises:
        InputError: No run, several, or none that matches; the message lists them.
    """
    runs = list_runs(parent, kind)
    if not runs:
        raise InputError(
            f"{parent.parent}: no {parent.name} yet; run `{kind.COMMAND} {parent.parent}` first"
        )
    chosen = [run_dir for run_dir in runs if run_dir.name.startswith(key or "")]
    if len(chosen) == 1:
        return chosen[0]
    listing = "; ".join(describe_run(run_dir, kind) for run_dir in runs)
    raise InputError(
        f"{parent.parent}: {len(chosen)} runs match {key or 'any key'}; choose one by its key "
        f"(--run) or its folder: {listing}"
    )


# --- shards on disk -----------------------------------------------------------------------------


def run_status(run_dir: Path, kind: type[Manifest]) -> RunStatus[Manifest]:
    """Every planned shard of a run, checked: the digest of every byte, the footer, the values.

    Raises:
        EncoreError: The manifest is missing or damaged.
    """
    manifest = read_manifest(run_dir, kind)
    return RunStatus(
        run_dir=run_dir,
        manifest=manifest,
        shards=inspect_shards(run_dir, manifest, manifest.shards),
    )


def inspect_shard(run_dir: Path, manifest: RunManifest, shard: Shard) -> ShardState:
    """The state of one shard, checked as by `run_status`."""
    return inspect_shards(run_dir, manifest, [shard])[0]


def write_shard(
    run_dir: Path, manifest: RunManifest, shard: Shard, content: ShardTable
) -> ShardState:
    """Put a shard on disk, whole or not at all, and read it back.

    Returns:
        The state of the shard. The first valid file wins: it may be another process's.

    Raises:
        EveryShardError: The disk is full.
        EncoreError: What was written is not what the plan expects.
    """
    footer = {**content.footer, **_own_footer(manifest, shard), "versions": package_versions()}
    try:
        with temporary_path(run_dir / f"shard-{shard.index:05d}") as temporary:
            with pq.ParquetWriter(temporary, content.table.schema, **manifest.PARQUET) as writer:
                writer.write_table(content.table)
                writer.add_key_value_metadata({_FOOTER_KEY: json.dumps(footer, sort_keys=True)})
            digest = file_sha256(temporary)[:_DIGEST_DIGITS]
            own = run_dir / f"shard-{shard.index:05d}.{digest}.parquet"
            if content.cost:
                write_json(_took_path(run_dir, shard.index), content.cost, indent=None)
            publish(temporary, own)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise EveryShardError(
            f"{run_dir}: the disk was full while shard {shard.index} was written; finished shards "
            "are kept; make room and run the same command again"
        ) from error
    _failure_path(run_dir, shard.index).unlink(missing_ok=True)
    state = inspect_shard(run_dir, manifest, shard)
    if state.state != "done":
        raise EncoreError(f"shard {shard.index}: written, but {state.detail}; run it again")
    for path in _shard_files(run_dir)[shard.index]:  # own: another process was first
        if path != state.path and (path == own or _read(path, manifest, shard).state != "done"):
            path.unlink(missing_ok=True)
    return state


def record_failure(run_dir: Path, shard: Shard, error: BaseException) -> None:
    """Remember why a shard failed, for `run_status`."""
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
    with contextlib.suppress(OSError):  # the failure matters more than its record
        write_json(_failure_path(run_dir, shard.index), {"error": reason})


def _took_path(run_dir: Path, index: int) -> Path:
    return run_dir / f"took-{index:05d}.json"


def _took(run_dir: Path, index: int) -> dict[str, Any]:
    """What a shard took, as far as that is known."""
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(_took_path(run_dir, index).read_bytes()))
    return {}


def _failure_path(run_dir: Path, index: int) -> Path:
    return run_dir / f"failed-{index:05d}.json"


def _shard_files(run_dir: Path) -> dict[int, list[Path]]:
    """The files of each shard, the one that was there first at the beginning."""
    found: dict[int, list[tuple[int, Path]]] = {}
    with contextlib.suppress(FileNotFoundError):
        for path in run_dir.iterdir():
            if match := _SHARD_NAME.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                    stamp = path.stat().st_mtime_ns
                    found.setdefault(int(match[1]), []).append((stamp, path))
    return {index: [path for _, path in sorted(files)] for index, files in found.items()}


def inspect_shards(
    run_dir: Path, manifest: RunManifest, shards: Sequence[Shard]
) -> tuple[ShardState, ...]:
    """The states of some shards, checked as by `run_status`."""
    files = _shard_files(run_dir)

    def state_of(shard: Shard) -> ShardState:
        states = [_read(path, manifest, shard) for path in files.get(shard.index, ())]
        if not states:
            return _without_file(run_dir, shard)
        return min(states, key=lambda one: one.state != "done")  # the first valid file wins

    with ThreadPoolExecutor() as pool:
        return tuple(pool.map(state_of, shards))


def finished_shards(
    run_dir: Path, manifest: RunManifest, shards: Iterable[Shard]
) -> tuple[ShardState, ...]:
    """The shards that are done, of some that were not: only those that have a file are read."""
    with_file = _shard_files(run_dir).keys()
    found = inspect_shards(run_dir, manifest, [one for one in shards if one.index in with_file])
    return tuple(state for state in found if state.state == "done")


def _read(path: Path, manifest: RunManifest, shard: Shard) -> ShardState:
    """The state that a shard's file proves: done, or damaged with the reason."""
    match = _SHARD_NAME.fullmatch(path.name)
    assert match is not None
    num_rows = shard.num_pairs * manifest.rows_per_pair
    try:
        digest = file_sha256(path)
        if not digest.startswith(match[2]):
            raise ValueError("its content does not match its SHA-256")
        file = pq.ParquetFile(path)
        metadata = file.metadata
        footer = _read_footer(metadata)
        for name, value in _own_footer(manifest, shard).items():
            if footer.get(name) != value:
                raise ValueError(f"its footer says {name} {footer.get(name)!r}, not {value!r}")
        if metadata.num_rows != num_rows:
            raise ValueError(f"it has {metadata.num_rows} rows, not {num_rows}")
        manifest.check_values(file)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        return ShardState(
            index=shard.index, state="damaged", detail=f"its file cannot be used: {error}"
        )
    return ShardState(
        index=shard.index,
        state="done",
        path=path,
        sha256=digest,
        footer=footer | _took(path.parent, shard.index),
        num_rows=num_rows,
    )


def _own_footer(manifest: RunManifest, shard: Shard) -> dict[str, Any]:
    """What the footer of a shard says of its place, beside what its run stores there."""
    return {"run_key": manifest.key, "shard_index": shard.index, "num_pairs": shard.num_pairs}


def _read_footer(metadata: Any) -> dict[str, Any]:
    footer: dict[str, Any] = json.loads((metadata.metadata or {})[_FOOTER_KEY.encode()])
    return footer


def _without_file(run_dir: Path, shard: Shard) -> ShardState:
    try:
        failure = json.loads(_failure_path(run_dir, shard.index).read_text(encoding="utf-8"))
        detail = str(failure["error"])
    except FileNotFoundError:
        return ShardState(index=shard.index, state="missing")
    except (OSError, ValueError, KeyError, TypeError):
        detail = "the record of the failure is unreadable"
    return ShardState(index=shard.index, state="failed", detail=detail)
