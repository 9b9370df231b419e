"""The preference pairs of a study: read back, checked against what was recorded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from encore.data.records import Message, PreferencePair
from encore.data.study import Study
from encore.errors import InputError
from encore.files import file_sha256
from encore.schemas import PAIRS

_MANIFEST_SUFFIX = ".manifest.json"


class Origin(BaseModel):
    """Where records came from: a file's name or a hub id, never a machine's path."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["local", "hub"]
    name: str
    format: str
    revision: str | None = None
    split: str | None = None
    subset: str | None = None
    prefer: str | None = None
    num_read: int


class PairsManifest(BaseModel):
    """What is recorded beside the pairs of one label.

    ``num_read`` = ``num_kept`` + ``num_duplicates`` + ``num_set_aside``. ``data_digest`` is
    SHA-256 over the sorted pair ids; ``parquet_sha256`` is that of the file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    origins: tuple[Origin, ...]
    num_read: int
    num_kept: int
    num_duplicates: int
    num_set_aside: int
    set_aside_by_reason: dict[str, int]
    num_contradicting: int
    data_digest: str
    parquet_sha256: str
    encore_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFiles:
    """The names of one label's files, relative to the study."""

    pairs: str
    set_aside: str
    manifest: str


def pair_files(label: str) -> PairFiles:
    """Where a label's files are."""
    return PairFiles(
        pairs=f"pairs/{label}.parquet",
        set_aside=f"pairs/{label}.set-aside.jsonl",
        manifest=f"pairs/{label}{_MANIFEST_SUFFIX}",
    )


def digest_of_ids(pair_ids: Iterable[bytes]) -> str:
    """SHA-256 over the sorted pair ids (hex, one a line): the same for every order of records.

    Args:
        pair_ids: The ids' 16 bytes each, which sort as their hex digits do.
    """
    digest = hashlib.sha256()
    for pair_id in sorted(pair_ids):
        digest.update(f"{pair_id.hex()}\n".encode())
    return digest.hexdigest()


def labels_of(study: Study) -> tuple[str, ...]:
    """The labels a study has pairs for, sorted."""
    names = (path.name for path in study.pairs_dir.glob(f"*{_MANIFEST_SUFFIX}"))
    return tuple(
        sorted(name.removesuffix(_MANIFEST_SUFFIX) for name in names if not name.startswith("."))
    )


def read_manifest(study: Study, label: str) -> PairsManifest:
    """What was recorded when a label was ingested.

    Raises:
        InputError: no such label, or a manifest that is not one.
    """
    path = study.path / pair_files(label).manifest
    if not path.is_file():
        known = ", ".join(labels_of(study)) or "none"
        raise InputError(f"study {study.path}: no pairs labelled {label!r} (labels: {known})")
    try:
        return PairsManifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"])) or "file"
        raise InputError(
            f"{path}: damaged manifest, {where}: {problem['msg']}; ingest again with --replace"
        ) from error


def verified_path(study: Study, label: str) -> Path:
    """The Parquet file of a label, after comparing its SHA-256 with the recorded one.

    Raises:
        InputError: missing, or changed since it was written.
    """
    manifest = read_manifest(study, label)
    path = study.path / pair_files(label).pairs
    if not path.is_file():
        raise InputError(f"{path}: missing, though its manifest is there; ingest again")
    found = file_sha256(path)
    if found != manifest.parquet_sha256:
        raise InputError(
            f"{path}: changed since it was ingested (SHA-256 {found[:12]}…, recorded "
            f"{manifest.parquet_sha256[:12]}…); ingest again with --replace"
        )
    return path


def read_pairs(study: Study, *, labels: Sequence[str] | None = None) -> pa.Table:
    """All pairs as one table of schema `encore.schemas.PAIRS`: label by label, in input order.

    Args:
        study: Where they are.
        labels: Only these (None: all, sorted).

    Raises:
        InputError: no such label; a file that was changed since it was ingested.
    """
    paths = [verified_path(study, label) for label in _chosen(study, labels)]
    tables = [pq.read_table(path, schema=PAIRS, partitioning=None) for path in paths]
    return pa.concat_tables(tables) if tables else PAIRS.empty_table()


def iter_pairs(study: Study, *, labels: Sequence[str] | None = None) -> Iterator[PreferencePair]:
    """The same pairs as records, one at a time, in constant memory.

    Raises:
        InputError: as `read_pairs`.
    """
    for label in _chosen(study, labels):
        # `pre_buffer`, the default, would hold the whole file.
        with pq.ParquetFile(verified_path(study, label), pre_buffer=False) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    yield _pair(row)


def data_digest(study: Study, *, labels: Sequence[str] | None = None) -> str:
    """SHA-256 that identifies the pairs under their labels: part of a run's identity.

    It covers every (label, pair id) and nothing else: neither order nor origin.

    Raises:
        InputError: no such label; a damaged manifest.
    """
    return _digest_of_labels(
        {label: read_manifest(study, label).data_digest for label in _chosen(study, labels)}
    )


def data_digest_of(pairs: pa.Table) -> str:
    """The `data_digest` of the pairs in hand: what a run rates is what its key says."""
    by_label = (
        pairs.select(["source", "pair_id"]).group_by("source").aggregate([("pair_id", "list")])
    )
    return _digest_of_labels(
        {
            row["source"]: digest_of_ids(map(bytes.fromhex, row["pair_id_list"]))
            for row in by_label.to_pylist()
        }
    )


def records_of(pairs: pa.Table) -> list[PreferencePair]:
    """The records of a table of schema `encore.schemas.PAIRS`."""
    return [_pair(row) for row in pairs.to_pylist()]


def planned_pairs(pairs: pa.Table, *, limit: int | None) -> pa.Table:
    """Pairs in the plan's order: by content hash, so that any prefix is a fair sample.

    Raises:
        InputError: No pairs.
    """
    if pairs.num_rows == 0:
        raise InputError("the study has no pairs; run `encore ingest` first")
    order = pc.sort_indices(pairs, sort_keys=[("pair_id", "ascending"), ("source", "ascending")])
    return pairs.take(order[:limit] if limit is not None else order)


def _digest_of_labels(digests: Mapping[str, str]) -> str:
    pairs = sorted([label, digest] for label, digest in digests.items())
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()


def _chosen(study: Study, labels: Sequence[str] | None) -> tuple[str, ...]:
    return labels_of(study) if labels is None else tuple(labels)


def _pair(row: dict[str, object]) -> PreferencePair:
    prompt = row.pop("prompt")
    assert isinstance(prompt, list)
    return PreferencePair(prompt=tuple(Message(**message) for message in prompt), **row)  # type: ignore[arg-type]
