"""The folder of one judging: what it is a judging of, and how far it is.

Layout: ``judging.json`` (what the key is a hash of, and names for people), then as for ratings one
``shard-00000.parquet`` per shard with its ``.sha256``, ``failed-00000.json``, ``locks/``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from encore.benchmarks.judging.summary import CHOSEN, NEITHER, REJECTED
from encore.benchmarks.judging.verdicts import VerdictNullReason
from encore.benchmarks.old_shards import (
    Shard,
    ShardFile,
    ShardState,
    inspect_file,
    plan_shards,
    run_key_of,
    shard_path,
)
from encore.errors import EncoreError, InputError, StudyIncompleteError
from encore.files import atomic_write_bytes

if TYPE_CHECKING:
    from encore.benchmarks.pairs import BenchmarkPairs

# Suffixes: P pairs, C criteria, 2 orders (the chosen answer first, the rejected one first).

MANIFEST_FILE = "judging.json"
ORDERS = ("chosen-first", "rejected-first")

#: Grain: one row per (pair of the benchmark in the plan's order, order, criterion), sorted so.
VERDICTS = pa.schema(
    [
        pa.field("row_id", pa.string(), nullable=False),
        pa.field("subset", pa.string(), nullable=False),
        pa.field("pair_id", pa.string(), nullable=False),
        pa.field("order", pa.string(), nullable=False),
        pa.field("criterion", pa.string(), nullable=False),
        pa.field("verdict", pa.string(), nullable=True),
        pa.field("preferred", pa.string(), nullable=True),
        pa.field("null_reason", pa.string(), nullable=True),
        pa.field("raw_reply", pa.string(), nullable=True),
        pa.field("judge", pa.string(), nullable=False),
        pa.field("run_key", pa.string(), nullable=False),
    ]
)
_NUMBER_OF = {"chosen": CHOSEN, "rejected": REJECTED, None: NEITHER}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingManifest:
    """What `judging.json` says: the key and everything it is a hash of.

    Attributes:
        key: 16 hex digits.
        identity: Judge and revision, prompt, criteria, decoding, data and plan.
        benchmark: What the benchmark was called when these pairs were judged first, for people;
            the key covers the pairs themselves.
        versions: For people.
    """

    key: str
    identity: Mapping[str, Any]
    benchmark: str
    versions: Mapping[str, str]

    @property
    def judge(self) -> str:
        """The judge's name."""
        return str(self.identity["judge"]["name"])

    @property
    def judge_revision(self) -> str:
        """The judge's commit or digest."""
        return str(self.identity["judge"]["revision"])

    @property
    def protocol(self) -> str:
        """The protocol's name."""
        return str(self.identity["protocol"])

    @property
    def criterion_ids(self) -> tuple[str, ...]:
        """What was judged by, in order."""
        return tuple(self.identity["criterion_ids"])

    @property
    def num_pairs(self) -> int:
        """Pairs of the plan."""
        return int(self.identity["plan"]["num_pairs"])

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The plan."""
        return plan_shards(self.num_pairs, shard_size=int(self.identity["plan"]["shard_size"]))

    @property
    def num_replies(self) -> int:
        """Of the whole plan."""
        return self.num_replies_of(self.num_pairs)

    def num_replies_of(self, num_pairs: int) -> int:
        """Replies that some pairs need: both orders under every criterion."""
        return num_pairs * len(ORDERS) * len(self.criterion_ids)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verdicts:
    """All verdicts of a judging, in the plan's order unless `in_order_of` says otherwise.

    Attributes:
        verdict_PC2: 1 where the chosen answer is named, -1 where the rejected one, 0 without
            verdict; int8, shape [P, C, 2].
        null_reasons: Replies without a verdict, by reason.
    """

    verdict_PC2: NDArray[np.int8]
    null_reasons: Mapping[VerdictNullReason, int]

    def in_order_of(self, pairs: BenchmarkPairs) -> Verdicts:
        """The verdicts of the plan as those of some pairs, which it is a plan of."""
        verdict_PC2 = np.empty_like(self.verdict_PC2)
        verdict_PC2[plan_order(pairs)] = self.verdict_PC2
        return Verdicts(verdict_PC2=verdict_PC2, null_reasons=self.null_reasons)


def plan_order(pairs: BenchmarkPairs) -> NDArray[np.intp]:
    """The places of the pairs in the plan's order: by subset, row id and content, shape [P].

    The same pairs in files of another order are then the same judging.
    """
    keys = _row_keys(pairs)
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.intp)


def rows_digest(pairs: BenchmarkPairs) -> str:
    """SHA-256 over subset, row id and content of every pair, the same for every order."""
    rows = json.dumps(sorted(_row_keys(pairs)), ensure_ascii=False)
    return hashlib.sha256(rows.encode()).hexdigest()


def _row_keys(pairs: BenchmarkPairs) -> list[tuple[str, str, str]]:
    ids = (pair.pair_id for pair in pairs.pairs)
    return list(zip(pairs.subset_P, pairs.row_id_P, ids, strict=True))


def claim_folder(folder: Path, manifest: JudgingManifest) -> None:
    """Make a judging's folder with its manifest, or find that it is there.

    Raises:
        EncoreError: A damaged manifest.
    """
    path = folder / MANIFEST_FILE
    (folder / "locks").mkdir(parents=True, exist_ok=True)
    if path.exists():
        read_manifest(folder)
        return
    text = json.dumps(asdict(manifest), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    atomic_write_bytes(path, text.encode())


def read_manifest(folder: Path) -> JudgingManifest:
    """The manifest of a judging.

    Raises:
        InputError: There is none.
        EncoreError: It is damaged, or its key does not follow from it.
    """
    path = folder / MANIFEST_FILE
    try:
        manifest = JudgingManifest(**json.loads(path.read_text(encoding="utf-8")))
        if run_key_of(manifest.identity) != manifest.key:
            raise ValueError("its key is not the hash of its identity")
        if not manifest.shards or not manifest.criterion_ids:
            raise ValueError("its plan or its criteria are empty")
    except FileNotFoundError as error:
        raise InputError(
            f"{folder}: no {MANIFEST_FILE} here; name a folder that `encore judge` wrote"
        ) from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EncoreError(
            f"{path}: damaged ({type(error).__name__}: {error}); delete that file and run the same "
            "`encore judge` again: valid shards are kept"
        ) from error
    return manifest


def inspect_verdicts(
    folder: Path, manifest: JudgingManifest, shard: Shard
) -> ShardFile | ShardState:
    """A shard's file, or why it is none that may be read. The digest is always checked."""
    num_rows = manifest.num_replies_of(shard.num_pairs)
    return inspect_file(folder, shard, run_key=manifest.key, num_rows=num_rows)


def read_verdicts(folder: Path, manifest: JudgingManifest) -> Verdicts:
    """All verdicts of a complete judging, in the plan's order.

    Raises:
        StudyIncompleteError: A shard is missing or damaged.
    """
    found = [inspect_verdicts(folder, manifest, shard) for shard in manifest.shards]
    problems = [one for one in found if isinstance(one, ShardState)]
    if problems:
        first = problems[0]
        detail = f": {first.detail}" if first.detail else ""
        raise StudyIncompleteError(
            f"{folder}: {len(problems)} of {len(found)} shards are not done (shard {first.index}: "
            f"{first.state}{detail}); run the same `encore judge` again to judge only these"
        )
    columns = ["preferred", "null_reason"]
    table = pa.concat_tables(
        [
            pq.ParquetFile(shard_path(folder, shard.index)).read(columns=columns)
            for shard in manifest.shards
        ]
    )
    number_N = np.array([_NUMBER_OF[one] for one in table["preferred"].to_pylist()], dtype=np.int8)
    verdict_P2C = number_N.reshape(manifest.num_pairs, len(ORDERS), len(manifest.criterion_ids))
    reasons = table["null_reason"].drop_null().value_counts().to_pylist()
    return Verdicts(
        verdict_PC2=verdict_P2C.transpose(0, 2, 1),
        null_reasons={one["values"]: one["counts"] for one in _sorted(reasons)},
    )


def _sorted(counts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(counts, key=lambda one: str(one["values"]))
