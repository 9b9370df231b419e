"""The manifest of a sharded run: its identity and its plan, and which run a folder holds."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from encore.core.errors import EncoreError, InputError
from encore.core.files import write_json
from encore.runs.checked_shards import CHECKED_FILE
from encore.runs.identity import run_key_of
from encore.runs.shard_listing import SHARD_NAME, ShardListing

#: Key of a shard's footer in the metadata of its file.
FOOTER_KEY = "encore.shard"
#: Beginnings of the names of all files in a run's folder, hidden temporary files included.
_NAME_PREFIXES = (
    *("locks", "engines", "shard-", "took-", "failed-", "replies-", "enough.json", CHECKED_FILE),
    ".",
)


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

    @property
    def title(self) -> str:
        """Return the name of the run in a list of runs, e.g. ``judge NAME``."""
        raise NotImplementedError

    @property
    def rows_per_pair(self) -> int:
        """Return the number of rows that one pair takes in a shard."""
        raise NotImplementedError

    @property
    def settings(self) -> Mapping[str, Any]:
        """Return the options of the run that are not the default, by the names of the config."""
        return dict(self.identity.get("config", {}))

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
    def named_judge(self) -> str:
        """Return the judge's name after the word judge, which is not said twice."""
        return self.judge if self.judge == "judge" else f"judge {self.judge}"

    @property
    def title(self) -> str:
        """Return the run for people: `named_judge`."""
        return self.named_judge


Manifest = TypeVar("Manifest", bound=RunManifest)


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
                key = read_footer(pq.read_metadata(path))["run_key"]
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


def only_run(parent: Path, kind: type[RunManifest]) -> Path:
    """Return the only run in a folder.

    Raises:
        InputError: No run, or several; the message lists them.
    """
    runs = list_runs(parent, kind)
    if not runs:
        raise InputError(
            f"{parent.parent}: no {parent.name} yet; run `{kind.COMMAND} {parent.parent}` first"
        )
    if len(runs) == 1:
        return runs[0]
    listing = "; ".join(describe_run(run_dir, kind) for run_dir in runs)
    raise InputError(
        f"{parent.parent}: {len(runs)} runs match any key; choose one by its key (--run) or its "
        f"folder: {listing}"
    )


def read_footer(metadata: Any) -> dict[str, Any]:
    """Return the footer of a shard's file.

    Raises:
        KeyError: It has none.
    """
    footer: dict[str, Any] = json.loads((metadata.metadata or {})[FOOTER_KEY.encode()])
    return footer
