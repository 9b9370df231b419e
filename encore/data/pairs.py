"""Write the preference pairs of a study label by label, and read them back checked."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from encore.data.pairs_manifest import Origin, PairsManifest, kept_columns_file, pair_files
from encore.data.records import RESPONSES, Message, PreferencePair, pair_id_of
from encore.data.schemas import PAIRS, SET_ASIDE_FIELDS
from encore.data.sources.raw_records import MalformedRecordError, RawRecord
from encore.data.study import LABELS_DIR, Change, Study, changed_study, is_study, open_study

_ROWS_PER_GROUP = 1024
#: A row group of long texts has fewer rows, so that the buffered ones stay small.
_MAX_GROUP_CHARACTERS = 32 << 20


# --- writing ------------------------------------------------------------------------------------


class PairWriter:
    """Writer of the pairs and the malformed records of one label. Get one from `pair_writer`.

    Every record is kept, merged with an equal pair, or set aside, and is counted as such.

    Attributes:
        label: Label of the pairs.
        num_duplicates: Number of pairs that equal an earlier one.
        num_contradicting: Number of kept pairs whose swapped responses were kept before.
        num_set_aside: Number of malformed records by reason.
        num_by_form: Number of pairs read from another form, by that form.
        pair_ids: Ids of the kept pairs, 16 bytes each.
        further: Texts of the further columns of each kept pair, by its pair_id.
    """

    def __init__(self, parquet: pq.ParquetWriter, set_aside: IO[str], *, label: str) -> None:
        self.label = label
        self.num_duplicates = 0
        self.num_contradicting = 0
        self.num_set_aside = Counter[str]()
        self.num_by_form = Counter[str]()
        self.pair_ids = set[bytes]()
        self.further = dict[str, Mapping[str, str | None]]()
        self._parquet = parquet
        self._set_aside = set_aside
        self._rows: list[PreferencePair] = []
        self._num_characters = 0

    def add(self, pair: PreferencePair, further: Mapping[str, str | None] | None = None) -> None:
        """Keep a pair unless an equal one was kept before.

        A pair with chosen and rejected swapped is another pair: both are kept, and the
        contradiction is counted.

        Args:
            pair: The pair, of the writer's label.
            further: Texts of its further columns; None keeps none.
        """
        pair_id = bytes.fromhex(pair.pair_id)
        if pair_id in self.pair_ids:
            self.num_duplicates += 1
            return
        swapped = pair_id_of(pair.prompt, chosen=pair.rejected, rejected=pair.chosen)
        self.num_contradicting += bytes.fromhex(swapped) in self.pair_ids
        self.pair_ids.add(pair_id)
        self._rows.append(pair)
        if further is not None:
            self.further[pair.pair_id] = further
        turns = (turn.content for turn in pair.prompt)
        self._num_characters += sum(map(len, (*turns, pair.chosen, pair.rejected)))
        if len(self._rows) == _ROWS_PER_GROUP or self._num_characters > _MAX_GROUP_CHARACTERS:
            self.flush()

    def set_aside(self, record: RawRecord, error: MalformedRecordError, *, file: str) -> None:
        """Record a malformed record with its file, its number and the reason."""
        self.num_set_aside[error.reason] += 1
        values = (self.label, file, record.number, error.reason, error.detail, record.excerpt())
        line = json.dumps(dict(zip(SET_ASIDE_FIELDS, values, strict=True)), ensure_ascii=False)
        self._set_aside.write(line + "\n")

    def flush(self) -> None:
        """Write the buffered pairs as one row group."""
        if self._rows:
            columns = {name: [getattr(pair, name) for pair in self._rows] for name in PAIRS.names}
            columns["prompt"] = [
                [{"role": turn.role, "content": turn.content} for turn in prompt]
                for prompt in columns["prompt"]
            ]
            self._parquet.write_table(pa.table(columns, PAIRS))
        self._rows, self._num_characters = [], 0


@contextmanager
def pair_writer(change: Change, label: str) -> Iterator[PairWriter]:
    """Open a writer of a label's pairs; its files are complete at the end of the block.

    Call `write_manifest` next: a study ignores pairs without a manifest.
    """
    files = pair_files(label)
    with (
        # Half a surrogate pair in an excerpt is written as an escape, as JSON does.
        change.path(files.set_aside).open(
            "w", encoding="utf-8", errors="backslashreplace", newline="\n"
        ) as set_aside,
        pq.ParquetWriter(change.path(files.pairs), PAIRS, compression="zstd") as parquet,
    ):
        writer = PairWriter(parquet, set_aside, label=label)
        yield writer
        writer.flush()


def write_manifest(
    change: Change, writer: PairWriter, *, origins: Sequence[Origin]
) -> PairsManifest:
    """Write the manifest of a finished writer. It is the last of a label's files to be moved."""
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
        read_by_form=dict(sorted(writer.num_by_form.items())),
        num_contradicting=writer.num_contradicting,
        data_digest=_digest_of_ids(writer.pair_ids),
        parquet_sha256=file_sha256(change.folder / files.pairs),
        encore_version=installed_version("encore-reward") or "unknown",
    )
    write_json(change.path(files.manifest), manifest)
    return manifest


def write_further_columns(change: Change, writer: PairWriter, names: Sequence[str]) -> None:
    """Write the further columns of a finished writer's pairs, in a file of their own.

    Raises:
        InputError: No kept pair has a text in a column.
    """
    columns = {name: [row[name] for row in writer.further.values()] for name in names}
    for name, values in columns.items():
        if all(value is None for value in values):
            raise InputError(
                f"--keep {name}: no pair of {writer.label} has this column; expected names of "
                "columns of the records"
            )
    ids = pa.array(writer.further, pa.string())
    table = pa.table(
        {"pair_id": ids} | {name: pa.array(v, pa.string()) for name, v in columns.items()}
    )
    pq.write_table(table, change.path(kept_columns_file(writer.label)), compression="zstd")


def write_pairs_once(
    path: Path, pairs: Mapping[str, Sequence[PreferencePair]], *, origin: Origin
) -> Study:
    """Write pairs as a new study, unless a study exists at the path, and open it.

    Args:
        path: Directory whose name depends on the pairs: an existing study is not compared.
        pairs: The pairs by label. Equal pairs of one label are written once.
        origin: Origin recorded in every manifest.

    Raises:
        InputError: Something other than a study is at the path.
    """
    if not is_study(path):
        with changed_study(path) as change:
            for label, pairs_of_label in pairs.items():
                with pair_writer(change, label) as writer:
                    for pair in pairs_of_label:
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
        f"labels with `encore labels`, or add pairs: encore ingest {study.path} SOURCE"
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


def pairs_paths(study: Study) -> list[Path]:
    """Return the Parquet files of all sources that are there, without a look at their digests."""
    paths = (study.path / pair_files(source.label).pairs for source in study.sources)
    return [path for path in paths if path.is_file()]


def read_pairs(study: Study) -> pa.Table:
    """Return all pairs as a table of schema `encore.data.schemas.PAIRS`: by label, in input order.

    Raises:
        InputError: A file was changed since it was ingested.
    """
    paths = [verified_path(study, source) for source in study.sources]
    tables = [pq.read_table(path, schema=PAIRS, partitioning=None) for path in paths]
    return pa.concat_tables(tables) if tables else PAIRS.empty_table()


def prompts_of_pairs(study: Study) -> dict[tuple[str, str], str]:
    """Return a digest of the prompt of each pair, by source and pair_id."""
    columns = ["source", "pair_id", "prompt"]
    return {
        (row["source"], row["pair_id"]): _prompt_digest(row["prompt"])
        for path in pairs_paths(study)
        for batch in pq.ParquetFile(path).iter_batches(columns=columns)
        for row in batch.to_pylist()
    }


def _prompt_digest(turns: Sequence[Mapping[str, str]]) -> str:
    # Python's own hash of a text differs from process to process.
    return hashlib.sha256(json.dumps(turns).encode()).hexdigest()


def iter_pairs(study: Study) -> Iterator[PreferencePair]:
    """Yield all pairs as records, in the order of `read_pairs`.

    Raises:
        InputError: A file was changed since it was ingested.
    """
    for batch in read_pairs(study).to_batches(1024):
        yield from records_of(batch)


def records_of(pairs: pa.Table | pa.RecordBatch) -> list[PreferencePair]:
    """Return the rows of a table of schema `encore.data.schemas.PAIRS` as records."""
    return [
        PreferencePair(**row | {"prompt": tuple(Message(**turn) for turn in row["prompt"])})
        for row in pairs.to_pylist()
    ]


def planned_pairs(pairs: pa.Table, *, limit: int | None) -> pa.Table:
    """Return pairs in the order in which a run plans them.

    They are sorted by content hash, so that every prefix is a fair sample.

    Args:
        pairs: Table with columns ``pair_id`` and ``source``.
        limit: Number of pairs to return from the beginning; None returns all.

    Raises:
        InputError: There are no pairs.
    """
    if pairs.num_rows == 0:
        raise InputError("the study has no pairs; run `encore ingest` first")
    order = pc.sort_indices(pairs, sort_keys=[("pair_id", "ascending"), ("source", "ascending")])
    return pairs.take(order[:limit] if limit is not None else order)


def num_bytes_of(pairs: pa.Table) -> NDArray[np.int64]:
    """Return the UTF-8 bytes of each pair's prompt turns and both responses, shape [P]."""
    prompts = pairs["prompt"].combine_chunks()
    turns = pc.binary_length(pc.struct_field(pc.list_flatten(prompts), "content"))
    pair_indices = pc.list_parent_indices(prompts)
    num_bytes = np.bincount(pair_indices, weights=turns, minlength=pairs.num_rows).astype(np.int64)
    for name in RESPONSES:
        num_bytes += pc.binary_length(pairs[name]).to_numpy()
    return num_bytes


# --- digests ------------------------------------------------------------------------------------


def data_digest(study: Study) -> str:
    """Return the SHA-256 that identifies a study's pairs in the identity of a run.

    It covers every (label, pair id), and neither their order nor their origin.

    Raises:
        InputError: A manifest is damaged.
    """
    return _digest_of_labels((source.label, source.data_digest) for source in study.sources)


def data_digest_of(pairs: pa.Table) -> str:
    """Return the `data_digest` of a table of pairs, so that a run's key covers what it rates."""
    ids = pairs.select(["source", "pair_id"])
    by_label = ids.group_by("source").aggregate([("pair_id", "list")]).to_pylist()
    return _digest_of_labels(
        (row["source"], _digest_of_ids(map(bytes.fromhex, row["pair_id_list"]))) for row in by_label
    )


def _digest_of_labels(digests: Iterable[tuple[str, str]]) -> str:
    return hashlib.sha256(json.dumps(sorted(digests)).encode()).hexdigest()


def _digest_of_ids(pair_ids: Iterable[bytes]) -> str:
    """Return the SHA-256 over the sorted pair ids, in hex, one per line."""
    digest = hashlib.sha256()
    for pair_id in sorted(pair_ids):  # 16 bytes each sort as their hex digits do
        digest.update(f"{pair_id.hex()}\n".encode())
    return digest.hexdigest()
