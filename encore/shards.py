"""Rating shards on disk: planned by content, written whole, done only when the file validates.

Layout of one run: ``run.json`` (what the run key is a hash of), one ``shard-00000.parquet`` per
shard with ``shard-00000.sha256`` beside it, ``failed-00000.json`` for a shard whose last attempt
failed, ``locks/`` for processes at work.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from encore.data.rules.load import rules_digest
from encore.errors import EncoreError, InputError
from encore.files import atomic_path, atomic_write_bytes, file_sha256

RUN_FILE = "run.json"
_FOOTER_KEY = "encore.shard"
#: A rating costs about 1.5 bytes, mostly its pair's id; column statistics and the Arrow copy of the
#: schema would add a tenth to a shard and serve nobody: shards are read whole.
_PARQUET_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "store_schema": False,
    "write_statistics": ["rating"],
}

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
class RunManifest:
    """What `run.json` says: the run key and everything it is a hash of, the rules' texts included.

    ``rule_set`` (a name) and ``versions`` are for people; the key does not cover them.
    """

    run_key: str
    identity: Mapping[str, Any]
    rule_set: str
    rules: Sequence[Mapping[str, str]]
    versions: Mapping[str, str]

    @property
    def num_pairs(self) -> int:
        """Pairs in the plan."""
        return int(self.identity["plan"]["num_pairs"])

    @property
    def shard_size(self) -> int:
        """Pairs in every shard but perhaps the last."""
        return int(self.identity["plan"]["shard_size"])

    @property
    def rule_ids(self) -> tuple[str, ...]:
        """Rule ids in head order."""
        return tuple(rule["rule_id"] for rule in self.rules)

    @property
    def judge(self) -> str:
        """The judge's name."""
        return str(self.identity["judge"]["name"])

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The plan."""
        return plan_shards(self.num_pairs, shard_size=self.shard_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """Where one shard stands, and why it is not done."""

    index: int
    state: ShardStateName
    detail: str = ""
    num_ratings: int = 0
    num_nulls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """Every shard of one run, as its files say."""

    run_dir: Path
    manifest: RunManifest
    shards: tuple[ShardState, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every planned shard validates."""
        return all(shard.state == "done" for shard in self.shards)

    def count(self, state: ShardStateName) -> int:
        """How many shards are in a state."""
        return sum(shard.state == state for shard in self.shards)


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


# --- runs ---------------------------------------------------------------------------------------


def write_run(run_dir: Path, manifest: RunManifest) -> None:
    """Create a run's folder and manifest; an existing manifest of the same key is kept."""
    path = run_dir / RUN_FILE
    if path.exists():
        read_run(run_dir)
        return
    (run_dir / "locks").mkdir(parents=True, exist_ok=True)
    content = {
        "run_key": manifest.run_key,
        "identity": manifest.identity,
        "rule_set": manifest.rule_set,
        "rules": list(manifest.rules),
        "versions": dict(manifest.versions),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    atomic_write_bytes(path, text.encode())


def read_run(run_dir: Path) -> RunManifest:
    """The manifest of a run.

    Raises:
        EncoreError: `run.json` is missing or damaged, or its key does not follow from it.
    """
    path = run_dir / RUN_FILE
    try:
        manifest = RunManifest(**json.loads(path.read_text(encoding="utf-8")))
        problem = _inconsistency(manifest, run_dir)
    except FileNotFoundError as error:
        raise EncoreError(
            f"run {run_dir.name}: {RUN_FILE} is missing; run `encore rate` with the same "
            "parameters to write it again"
        ) from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        problem = f"{type(error).__name__}: {error}"
    if problem is not None:
        raise EncoreError(
            f"run {run_dir.name}: {RUN_FILE} is damaged ({problem}); delete that file and run "
            "`encore rate` with the same parameters: valid shards are kept"
        )
    return manifest


def _inconsistency(manifest: RunManifest, run_dir: Path) -> str | None:
    """Why a manifest cannot be believed, if so: everything in it must follow from its key."""
    if run_key_of(manifest.identity) != manifest.run_key:
        return "its run key is not the hash of its identity"
    if manifest.run_key != run_dir.name:
        return f"it belongs to run {manifest.run_key}"
    if rules_digest(manifest.rules) != manifest.identity["rules_sha256"]:
        return "its rules are not those of its identity"
    if manifest.num_pairs < 1 or manifest.shard_size < 1:
        return f"a plan of {manifest.num_pairs} pairs in shards of {manifest.shard_size}"
    return None


def list_runs(ratings_dir: Path) -> tuple[Path, ...]:
    """The folders of all runs of a study, sorted by run key: with a manifest or with a shard."""
    found = {path.parent for path in ratings_dir.glob(f"*/{RUN_FILE}")}
    found |= {path.parent for path in ratings_dir.glob("*/shard-*.parquet")}
    return tuple(sorted(found))


def describe_run(run_dir: Path) -> str:
    """A run's key and judge, for a list to choose from."""
    try:
        return f"{run_dir.name} (judge {read_run(run_dir).judge})"
    except EncoreError:
        return f"{run_dir.name} ({RUN_FILE} damaged)"


def choose_run(ratings_dir: Path, run: str | None) -> Path:
    """The only run, or the one whose key begins with ``run``.

    Raises:
        InputError: No run, several, or none that matches; the message lists them.
    """
    runs = list_runs(ratings_dir)
    if not runs:
        raise InputError(f"{ratings_dir.parent}: no ratings yet; run `encore rate` first")
    chosen = [path for path in runs if path.name.startswith(run or "")]
    if len(chosen) == 1:
        return chosen[0]
    listing = "; ".join(describe_run(path) for path in runs)
    if not chosen:
        raise InputError(f"--run {run!r}: not in {ratings_dir.parent}, which has: {listing}")
    raise InputError(
        f"{ratings_dir.parent}: {len(chosen)} runs match; choose one with --run KEY: {listing}"
    )


# --- shards -------------------------------------------------------------------------------------


def write_shard(run_dir: Path, shard: Shard, table: pa.Table, *, footer: Mapping[str, Any]) -> None:
    """Put a shard of ratings on disk; ``footer`` goes into the Parquet metadata beside counts."""
    nulls = table["rating"].null_count
    counts = {"num_ratings": table.num_rows - nulls, "num_nulls": nulls}
    put_shard(run_dir, shard, table, footer={**footer, **counts}, options=_PARQUET_OPTIONS)


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


def inspect_shard(run_dir: Path, manifest: RunManifest, shard: Shard) -> ShardState:
    """Where a shard of ratings stands, from its files alone. The digest is always checked."""
    num_rows = shard.num_pairs * 2 * len(manifest.rules)
    found = inspect_file(run_dir, shard, run_key=manifest.run_key, num_rows=num_rows)
    if isinstance(found, ShardState):
        return found
    num_ratings, num_nulls = found.footer["num_ratings"], found.footer["num_nulls"]
    if num_ratings + num_nulls != num_rows:
        return _damaged(shard, f"its footer counts {num_ratings + num_nulls} rows, not {num_rows}")
    return ShardState(index=shard.index, state="done", num_ratings=num_ratings, num_nulls=num_nulls)


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


def status(study: Path) -> tuple[RunStatus, ...]:
    """Every run of a study, every shard checked."""
    return tuple(run_status(run_dir) for run_dir in list_runs(study / "ratings"))


def run_status(run_dir: Path) -> RunStatus:
    """Every planned shard of a run, checked."""
    manifest = read_run(run_dir)
    states = tuple(inspect_shard(run_dir, manifest, shard) for shard in manifest.shards)
    return RunStatus(run_dir=run_dir, manifest=manifest, shards=states)


def validated_shards(status: RunStatus) -> tuple[Path, ...]:
    """The files of the shards that are done: the only ones anything may read."""
    return tuple(
        shard_path(status.run_dir, shard.index) for shard in status.shards if shard.state == "done"
    )


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


def run_key_of_file(path: Path) -> str | None:
    """Which run a shard's file says it belongs to; None where nothing can be read from it."""
    try:
        return str(_read_footer(pq.read_metadata(path))["run_key"])
    except (pa.ArrowException, OSError, KeyError, ValueError):
        return None


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
