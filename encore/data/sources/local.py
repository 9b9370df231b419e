"""Read records from local files: JSON, CSV, Parquet or Arrow, compressed or not."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encore.core.errors import InputError
from encore.data.sources.csv_records import read_csv
from encore.data.sources.file_streams import (
    MAX_RECORD_BYTES,
    open_utf8,
    readable,
    refuse_long_value,
)
from encore.data.sources.json_records import read_json
from encore.data.sources.raw_records import MalformedRecordError, RawRecord

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_SUFFIXES = (".parquet", ".arrow", ".feather")
CSV_SUFFIXES = (".csv", ".tsv")
_TEXT_SUFFIXES = (".csv", ".jsonl", ".json", ".tsv", ".ndjson")
_COMPRESSIONS = ("", ".gz", ".zst", ".xz", ".bz2", ".lz4")
SUFFIXES = (
    *(name + compression for name, compression in itertools.product(_TEXT_SUFFIXES, _COMPRESSIONS)),
    *TABLE_SUFFIXES,
)
#: `SUFFIXES` for messages.
SUFFIXES_TEXT = (
    f"{', '.join(_TEXT_SUFFIXES)} (each also with {', '.join(filter(None, _COMPRESSIONS))}), "
    f"{', '.join(TABLE_SUFFIXES)}"
)
#: Files that `save_to_disk` of Hugging Face's `datasets` writes beside a data set, or its splits.
_SAVED_STATE, _SAVED_SPLITS = "state.json", "dataset_dict.json"
_ROWS_PER_BATCH = 256
#: A batch has fewer rows than that where a value may be so large that they would exceed this size.
_BATCH_BYTES = 32 << 20
_MIN_ROWS_PER_BATCH = 8
#: With the default, and with `pre_buffer`, the reader holds the whole file in memory.
_BUFFER_BYTES = 1 << 20
_PARQUET, _ARROW_FILE = b"PAR1", b"ARROW1"


def data_suffix(path: Path) -> str | None:
    """Return the one of `SUFFIXES` that a file name ends with, else None."""
    return next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), None)


def data_files(path: Path) -> tuple[Path, ...]:
    """Return the file itself, or the data files of a folder sorted by name.

    Of a folder that `save_to_disk` of `datasets` wrote they are the Arrow files.

    Raises:
        InputError: There is no data file, or it cannot be read, or it is a folder of several
            splits.
    """
    with readable(path):
        entries = [path] if path.is_file() else sorted(path.iterdir())
    names = [entry.name for entry in entries]
    if _SAVED_SPLITS in names:
        splits = ", ".join(str(entry) for entry in entries if entry.is_dir())
        raise InputError(f"{path}: a data set of several splits; name one of its folders: {splits}")
    if _SAVED_STATE in names:
        entries = _files_of_state(path / _SAVED_STATE)
    files = tuple(
        entry
        for entry in entries
        if entry.is_file()
        and data_suffix(entry)
        and (entry == path or not entry.name.startswith("."))
    )
    if not files:
        raise InputError(
            f"{path}: no data file; expected one that ends in {SUFFIXES_TEXT}, or a folder of such "
            "files"
        )
    return files


def _files_of_state(state_path: Path) -> list[Path]:
    """Return the files of a saved data set; beside them lie those of caches and earlier saves."""
    try:
        state = json.loads(state_path.read_text(encoding="utf-8"))
        files = [state_path.with_name(entry["filename"]) for entry in state["_data_files"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"{state_path}: it does not name the files of a saved data set ({error!r}); save it "
            "again with save_to_disk"
        ) from error
    if missing := [file.name for file in files if not file.is_file()]:
        raise InputError(f"{state_path}: {missing[0]} is missing; copy the whole folder again")
    return files


def is_saved_dataset(path: Path) -> bool:
    """Return True if a path is a folder that `save_to_disk` of `datasets` wrote."""
    return any((path / name).is_file() for name in (_SAVED_STATE, _SAVED_SPLITS))


def read_saved_dataset(path: Path) -> pa.Table:
    """Return the rows of a folder that `save_to_disk` of `datasets` wrote. They stay on disk.

    Raises:
        InputError: The folder has several splits, or a file is missing or damaged.
    """
    import pyarrow as pa

    tables = [read_arrow(file) for file in data_files(path)]
    try:
        return pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise InputError(f"{path}: its files have different columns; save it again") from error


def read_arrow(path: Path) -> pa.Table:
    """Return the rows of an Arrow file (Feather too) or stream. They stay on disk.

    Raises:
        InputError: The file is damaged.
    """
    import pyarrow as pa

    with readable(path):
        try:
            return _open_arrow(path).read_all()
        except pa.ArrowException as error:
            raise InputError(f"{path}: no valid Arrow ({error}); get the file again") from error


def read_records(path: Path, *, columns: Collection[str] = ()) -> Iterator[RawRecord]:
    """Yield every record of a file in order.

    Lines of JSON, CSV, Parquet and Arrow are read in constant memory, other JSON as a whole
    (`encore.data.sources.json_records`). Blank lines are skipped. A line that is not UTF-8 or not
    JSON is yielded with its problem, so that the caller can count it.

    Args:
        path: The file. Its content, not its name, decides if it is compressed, Parquet or Arrow.
        columns: The only columns of a Parquet or Arrow file that are read, where it has them;
            empty reads all.

    Raises:
        InputError: The file cannot be read: it is incomplete or damaged, a record is above
            `MAX_RECORD_BYTES`, no permission.
    """
    with readable(path):
        if is_table_file(path):
            yield from _table_records(path, columns)
        elif is_csv(path):
            yield from read_csv(path)
        else:
            with open_utf8(path) as stream:
                yield from read_json(stream, name=str(path))


def is_table_file(path: Path) -> bool:
    """Return True for a Parquet or Arrow file, by its content or its name."""
    with readable(path):
        is_table = _beginning(path).startswith((_PARQUET, _ARROW_FILE))
    return is_table or data_suffix(path) in TABLE_SUFFIXES


def is_parquet(path: Path) -> bool:
    """Return True for a Parquet file, by its content; a damaged one by its name."""
    with readable(path):
        beginning = _beginning(path)
    if beginning.startswith((_PARQUET, _ARROW_FILE)):
        return beginning.startswith(_PARQUET)
    return data_suffix(path) == ".parquet"


def is_csv(path: Path) -> bool:
    """Return True for a file that a CSV reader reads, by its name."""
    return (data_suffix(path) or "").startswith(CSV_SUFFIXES)


def _table_records(path: Path, columns: Collection[str]) -> Iterator[RawRecord]:
    import pyarrow as pa

    number = 0
    try:
        for batch in _batches(path, columns):
            is_large = batch.nbytes > MAX_RECORD_BYTES
            for row in batch.to_struct_array():
                number += 1
                try:
                    record = RawRecord(number=number, value=row.as_py())
                except UnicodeDecodeError as error:  # Arrow does not check text when it reads
                    problem = MalformedRecordError("not-utf8", f"row {number}: {error.reason}")
                    record = RawRecord(number=number, problem=problem, raw=bytes(error.object))
                if is_large:
                    refuse_long_value(record.value, position=f"{path}, row {number}")
                yield record
    except pa.ArrowException as error:
        kind = "Parquet" if is_parquet(path) else "Arrow"
        raise InputError(f"{path}: no valid {kind} ({error}); get the file again") from error


def _batches(path: Path, columns: Collection[str]) -> Iterator[Any]:
    """Yield the rows of a Parquet file in batches of bounded size, or those of an Arrow file."""
    import pyarrow.parquet as pq

    if not is_parquet(path):
        reader = _open_arrow(path)
        batches = (
            map(reader.get_batch, range(reader.num_record_batches))
            if hasattr(reader, "num_record_batches")
            else reader
        )
        for batch in batches:
            names = [name for name in batch.schema.names if name in columns]
            yield batch.select(names) if names else batch
        return
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
        names = [name for name in file.schema_arrow.names if name in columns]
        for group in range(file.num_row_groups):
            num_rows = _batch_rows(file.metadata.row_group(group))
            yield from file.iter_batches(num_rows, row_groups=[group], columns=names or None)


def _beginning(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(len(_ARROW_FILE))


def _open_arrow(path: Path) -> Any:
    """Return the reader of an Arrow file, or of a stream as `save_to_disk` writes it."""
    import pyarrow as pa

    is_file = _beginning(path).startswith(_ARROW_FILE)
    return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(pa.memory_map(str(path)))


def _batch_rows(group: Any) -> int:
    """Return the number of rows to decode at once of a row group of a Parquet file.

    A few bytes of a dictionary's index may stand for a value as large as the whole column.
    """
    largest_row: int = sum(
        group.column(index).total_uncompressed_size for index in range(group.num_columns)
    )
    num_rows = _BATCH_BYTES // max(largest_row, 1)
    return min(max(num_rows, _MIN_ROWS_PER_BATCH), _ROWS_PER_BATCH)
