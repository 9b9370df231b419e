"""The preference pairs of a study: written label by label, read back and checked."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from encore.core.errors import InputError
from encore.core.files import file_sha256, write_json
from encore.core.versions import installed_version
from encore.data.pairs_manifest import Origin, PairsManifest, pair_files
from encore.data.records import RESPONSES, Message, PreferencePair, pair_id_of
from encore.data.schemas import PAIRS, SET_ASIDE_FIELDS
from encore.data.sources.raw_records import MalformedRecordError, RawRecord
from encore.data.study import LABELS_DIR, Change, Study, changed_study, is_study, open_study

_ROWS_PER_GROUP = 1024


# --- writing ------------------------------------------------------------------------------------


class PairWriter:
    """Takes the pairs and the malformed records of one label; use it through `pair_writer`.

    Every record read is kept, merged with an equal one, or set aside; each is counted.
    """

    def __init__(self, parquet: pq.ParquetWriter, set_aside: IO[str], *, label: str) -> None:
        self.label = label
        self.num_duplicates = 0
        self.num_contradicting = 0
        self.num_set_aside = Counter[str]()
        self.pair_ids = set[bytes]()
        self._parquet = parquet
        self._set_aside = set_aside
        self._rows: list[PreferencePair] = []

    def add(self, pair: PreferencePair) -> None:
        """Keep a pair, unless an equal one was kept before.

        The same responses with the labels the other way round are another pair: both are kept,
        and the contradiction is counted.
        """
        pair_id = bytes.fromhex(pair.pair_id)
        if pair_id in self.pair_ids:
            self.num_duplicates += 1
            return
        swapped = pair_id_of(pair.prompt, chosen=pair.rejected, rejected=pair.chosen)
        self.num_contradicting += bytes.fromhex(swapped) in self.pair_ids
        self.pair_ids.add(pair_id)
        self._rows.append(pair)
        if len(self._rows) == _ROWS_PER_GROUP:
            self.flush()

    def set_aside(self, record: RawRecord, error: MalformedRecordError, *, file: str) -> None:
        """Write down a record that is no pair, with where it was and why."""
        self.num_set_aside[error.reason] += 1
        values = (self.label, file, record.number, error.reason, error.detail, record.excerpt())
        line = json.dumps(dict(zip(SET_ASIDE_FIELDS, values, strict=True)), ensure_ascii=False)
        self._set_aside.write(line + "\n")

    def flush(self) -> None:
        """Write the pairs in hand as one row group."""
        if self._rows:
            self._parquet.write_table(pa.Table.from_pylist(list(map(asdict, self._rows)), PAIRS))
        self._rows = []


@contextmanager
def pair_writer(change: Change, label: str) -> Iterator[PairWriter]:
    """A writer of a label's pairs and of what was set aside; whole when the block has ended.

    Call `write_manifest` next: pairs without a manifest are not there.
    """
    files = pair_files(label)
    with (
        # Half a surrogate pair in an excerpt becomes an escape, which is what JSON has for it.
        change.path(files.set_aside).open(
            "w", encoding="utf-8", errors="backslashreplace", newline="\n"
        ) as aside,
        pq.ParquetWriter(change.path(files.pairs), PAIRS, compression="zstd") as parquet,
    ):
        writer = PairWriter(parquet, aside, label=label)
        yield writer
        writer.flush()


def write_manifest(
    change: Change, writer: PairWriter, *, origins: Sequence[Origin]
) -> PairsManifest:
    """Record what a finished writer counted; it takes its place last."""
    num_kept, num_set_aside = len(writer.pair_ids), writer.num_set_aside.total()
    files = pair_files(writer.label)
    manifest = PairsManifest(
        label=writer.label,
        origins=tuple(origins),
        num_read=num_kept + writer.num_duplicates + num_set_aside,
        num_kept=num_kept,
        num_duplicates=writer.num_duplicates,
        num_set_aside=num_set_aside,
        set_aside_by_reason=dict(sorted(writer.num_set_aside.items())),
        num_contradicting=writer.num_contradicting,
        data_digest=_digest_of_ids(writer.pair_ids),
        parquet_sha256=file_sha256(change.folder / files.pairs),
        encore_version=installed_version("encore-reward") or "unknown",
    )
    write_json(change.path(files.manifest), manifest)
    return manifest


def write_pairs_once(
    path: Path, pairs: Mapping[str, Sequence[PreferencePair]], *, origin: Origin
) -> Study:
    """A study with these pairs, made whole or found.

    Args:
        path: Names its content: what is there already is not compared.
        pairs: By label, which is their source; equal ones of one label are in it once.
        origin: Where they come from.

    Raises:
        InputError: Something else is at its place.
    """
    if not is_study(path):
        with changed_study(path) as change:
            for label, labelled in pairs.items():
                with pair_writer(change, label) as writer:
                    for pair in labelled:
                        writer.add(pair)
                write_manifest(change, writer, origins=[origin])
    return open_study(path)


# --- reading ------------------------------------------------------------------------------------


def missing_pairs_error(study: Study) -> InputError | None:
    """Return the error of a study that has labels of single responses and no pairs, else None."""
    if study.labels or not (study.path / LABELS_DIR).is_dir():
        return None
    return InputError(
        f"study {study.path}: it has labels of single responses, and this needs pairs; read the "
        f"labels with `encore labels`, or add pairs: encore ingest SOURCE --out {study.path}"
    )


def verified_path(study: Study, source: PairsManifest) -> Path:
    """Return the Parquet file of a source after comparing its SHA-256 with the recorded one.

    Raises:
        InputError: The file is missing, or was changed since it was written.
    """
    path = study.path / pair_files(source.label).pairs
    sha256 = file_sha256(path) if path.is_file() else "no file"
    if sha256 != source.parquet_sha256:
        raise InputError(
            f"{path}: changed since it was ingested (SHA-256 {sha256[:12]}…, recorded "
            f"{source.parquet_sha256[:12]}…); ingest again with --replace"
        )
    return path


def read_pairs(study: Study) -> pa.Table:
    """All pairs as one table of schema `encore.data.schemas.PAIRS`: label by label, in input order.

    Raises:
        InputError: a file that was changed since it was ingested.
    """
    paths = [verified_path(study, source) for source in study.sources]
    tables = [pq.read_table(path, schema=PAIRS, partitioning=None) for path in paths]
    return pa.concat_tables(tables) if tables else PAIRS.empty_table()


def iter_pairs(study: Study) -> Iterator[PreferencePair]:
    """The same pairs as records, one at a time.

    Raises:
        InputError: as `read_pairs`.
    """
    for batch in read_pairs(study).to_batches(1024):
        yield from records_of(batch)


def records_of(pairs: pa.Table | pa.RecordBatch) -> list[PreferencePair]:
    """The records of a table of schema `encore.data.schemas.PAIRS`."""
    return [
        PreferencePair(**row | {"prompt": tuple(Message(**turn) for turn in row["prompt"])})
        for row in pairs.to_pylist()
    ]


def planned_pairs(pairs: pa.Table, *, limit: int | None) -> pa.Table:
    """Pairs in the plan's order: by content hash, so that any prefix is a fair sample.

    Raises:
        InputError: No pairs.
    """
    if pairs.num_rows == 0:
        raise InputError("the study has no pairs; run `encore ingest` first")
    order = pc.sort_indices(pairs, sort_keys=[("pair_id", "ascending"), ("source", "ascending")])
    return pairs.take(order[:limit] if limit is not None else order)


def num_bytes_of(pairs: pa.Table) -> NDArray[np.int64]:
    """Bytes of each pair's texts, the prompt's turns and both responses, in UTF-8; shape [P]."""
    prompts = pairs["prompt"].combine_chunks()
    turns = pc.binary_length(pc.struct_field(pc.list_flatten(prompts), "content"))
    places = pc.list_parent_indices(prompts)
    num_bytes = np.bincount(places, weights=turns, minlength=pairs.num_rows).astype(np.int64)
    for name in RESPONSES:
        num_bytes += pc.binary_length(pairs[name]).to_numpy()
    return num_bytes


# --- digests ------------------------------------------------------------------------------------


def data_digest(study: Study) -> str:
    """SHA-256 that identifies the pairs under their labels: part of a run's identity.

    It covers every (label, pair id) and nothing else: neither order nor origin.

    Raises:
        InputError: a damaged manifest.
    """
    return _digest_of_labels((source.label, source.data_digest) for source in study.sources)


def data_digest_of(pairs: pa.Table) -> str:
    """The `data_digest` of the pairs in hand: what a run rates is what its key says."""
    ids = pairs.select(["source", "pair_id"])
    by_label = ids.group_by("source").aggregate([("pair_id", "list")]).to_pylist()
    return _digest_of_labels(
        (row["source"], _digest_of_ids(map(bytes.fromhex, row["pair_id_list"]))) for row in by_label
    )


def _digest_of_labels(digests: Iterable[tuple[str, str]]) -> str:
    return hashlib.sha256(json.dumps(sorted(digests)).encode()).hexdigest()


def _digest_of_ids(pair_ids: Iterable[bytes]) -> str:
    """SHA-256 over the sorted pair ids (hex, one a line): the same for every order of records."""
    digest = hashlib.sha256()
    for pair_id in sorted(pair_ids):  # 16 bytes each sort as their hex digits do
        digest.update(f"{pair_id.hex()}\n".encode())
    return digest.hexdigest()
