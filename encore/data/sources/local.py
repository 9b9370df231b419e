"""Read records from local files: JSON lines, a JSON array, CSV, Parquet or Arrow.

JSON and CSV may be compressed by gzip.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import itertools
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encore.core.errors import InputError
from encore.data.sources.raw_records import MalformedRecordError, RawRecord

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (
    *(".csv", ".jsonl", ".json", ".csv.gz", ".jsonl.gz", ".json.gz"),
    *(".parquet", ".arrow"),
)
#: A longer line is no record: decoded it takes several times as much memory.
MAX_RECORD_BYTES = 64 << 20
#: A JSON array is decoded as a whole.
MAX_ARRAY_BYTES = 1 << 30
#: Files that `save_to_disk` of Hugging Face's `datasets` writes beside a data set, or its splits.
_SAVED_STATE, _SAVED_SPLITS = "state.json", "dataset_dict.json"
#: Separators of cells; spreadsheet programs of different countries write different ones.
_CSV_SEPARATORS = ",;\t"
#: A carriage return alone ends a line, too.
_AFTER_CARRIAGE_RETURN = re.compile(r"(?<=\r)(?=[^\n])")
_CARRIAGE_RETURNS = """; lines end with a carriage return alone, convert them: tr '\\r' '\\n'"""
_ROWS_PER_BATCH = 256
#: With the default, and with `pre_buffer`, the reader holds the whole file in memory.
_BUFFER_BYTES = 1 << 20


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
    with _readable(path):
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
            f"{path}: no data file; expected one that ends in {', '.join(SUFFIXES)}, or a folder "
            "of such files"
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

    tables = []
    for file in data_files(path):
        try:
            tables.append(pa.ipc.open_stream(pa.memory_map(str(file))).read_all())
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{file}: no valid Arrow ({error}); get the file again") from error
    try:
        return pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise InputError(f"{path}: its files have different columns; save it again") from error


def read_records(path: Path, *, columns: Sequence[str] = ()) -> Iterator[RawRecord]:
    """Yield every record of a file in order.

    JSON lines, CSV, Parquet and Arrow are read in constant memory, a JSON array as a whole. Blank
    lines are skipped. A line that is not UTF-8 or not JSON is yielded with its problem, so that the
    caller can count it.

    Args:
        path: The file. Its content, not its name, decides if it is compressed.
        columns: Columns that a Parquet file must have, and the only ones that are read; empty
            reads all.

    Raises:
        InputError: The file cannot be read: an incomplete gzip, a damaged array, CSV or Parquet, a
            missing column, a record above `MAX_RECORD_BYTES`, no permission.
    """
    with _readable(path):
        if data_suffix(path) in (".parquet", ".arrow"):
            yield from _table_records(path, columns)
            return
        if data_suffix(path) in (".csv", ".csv.gz"):
            yield from read_csv(path)
            return
        with _decompressed(path) as stream:
            is_json = data_suffix(path) in (".json", ".json.gz")
            if is_json and stream.peek(100).lstrip().startswith(b"["):
                yield from _json_array(stream, name=str(path))
            else:
                yield from _json_lines(stream, name=str(path))


def read_csv(path: Path) -> Iterator[RawRecord]:
    """Yield each row of a CSV file as spreadsheet programs save it; cells are text, or "".

    The most frequent of comma, semicolon and tab in the header separates cells. A row has the
    number of its first line.

    Raises:
        InputError: The file is not CSV in UTF-8, two columns have the same name, or a row has more
            cells than columns.
    """
    csv.field_size_limit(MAX_RECORD_BYTES)
    last_line = 0
    with _readable(path), _decompressed(path) as stream:
        try:
            texts = (line.decode("utf-8") for line in _lines(stream, name=str(path)))
            lines = (line for text in texts for line in _AFTER_CARRIAGE_RETURN.split(text))
            header = next(lines, "")
            rows = csv.DictReader(
                itertools.chain([header], lines),
                delimiter=_separator_of(header),
                restval="",
                strict=True,
            )
            columns = list(rows.fieldnames or ())
            if repeated := [column for column in columns if columns.count(column) > 1]:
                raise InputError(f"{path}, line 1: column {repeated[0]!r} is there twice")
            for row in rows:
                if None in row:
                    raise InputError(
                        f"{path}, line {rows.line_num}: more cells than the header has columns; "
                        "put a text with separators in quotes"
                    )
                last_line = rows.line_num
                num_breaks = sum(cell.count("\n") for cell in row.values())
                yield RawRecord(number=last_line - num_breaks, value=row)
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(
                f"{path}: {error} (after line {last_line}); expected a CSV file in UTF-8"
            ) from error


def csv_separator(path: Path) -> str:
    """Return the separator of a CSV file: the most frequent one in its first line."""
    with _readable(path), _decompressed(path) as stream:
        return _separator_of(stream.readline(MAX_RECORD_BYTES).decode("utf-8", "replace"))


def _separator_of(header: str) -> str:
    return max(_CSV_SEPARATORS, key=header.count)


@contextmanager
def _decompressed(path: Path) -> Iterator[BufferedReader | gzip.GzipFile]:
    """Open a file, decompressed and without its byte-order mark."""
    with path.open("rb") as plain:
        # Downloads are often unpacked but keep ".gz" in their names.
        is_compressed = plain.peek(2).startswith(b"\x1f\x8b")
        stream = gzip.GzipFile(fileobj=plain) if is_compressed else plain
        if stream.peek(3).startswith(codecs.BOM_UTF8):
            stream.read(3)
        yield stream


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Name the file in errors of reading."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{path}: reading failed ({error}); give permission, or get the file again"
        ) from error


def _lines(stream: BufferedReader | gzip.GzipFile, *, name: str) -> Iterator[bytes]:
    """Yield the lines of a file; refuse one that is too long before all of it is read."""
    lines = iter(lambda: stream.readline(MAX_RECORD_BYTES + 1), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > MAX_RECORD_BYTES:
            raise _too_long(f"{name}, line {number}")
        yield line


def _too_long(position: str) -> InputError:
    limit = f"longer than {MAX_RECORD_BYTES >> 20} MiB"
    return InputError(f"{position}: {limit}, the limit of a record; leave it out")


def _json_lines(stream: BufferedReader | gzip.GzipFile, *, name: str) -> Iterator[RawRecord]:
    for number, line in enumerate(_lines(stream, name=name), start=1):
        if not line.strip():
            continue
        problem, value = None, None
        try:
            value = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            problem = MalformedRecordError("not-utf8", f"byte {error.start}: {error.reason}")
        except (ValueError, RecursionError) as error:
            advice = _CARRIAGE_RETURNS if b"\r" in line.strip() else ""
            problem = MalformedRecordError("not-json", f"line {number}: {error}{advice}")
        yield RawRecord(number=number, value=value, problem=problem, raw=line)


def _json_array(stream: BufferedReader | gzip.GzipFile, *, name: str) -> Iterator[RawRecord]:
    content = stream.read(MAX_ARRAY_BYTES + 1)
    if len(content) > MAX_ARRAY_BYTES:
        raise InputError(
            f"{name}: a JSON array of more than {MAX_ARRAY_BYTES >> 20} MiB, which is decoded as a "
            "whole; write one object per line (.jsonl)"
        )
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{name}: not valid JSON ({error}); write one object per line (.jsonl), or one array "
            "of objects"
        ) from error
    for number, value in enumerate(values, start=1):
        if len(content) > MAX_RECORD_BYTES:  # a shorter array has no such record
            text = json.dumps(value, ensure_ascii=False)
            if len(text.encode("utf-8", "surrogatepass")) > MAX_RECORD_BYTES:
                raise _too_long(f"{name}, record {number}")
        yield RawRecord(number=number, value=value)


def _table_records(path: Path, columns: Sequence[str]) -> Iterator[RawRecord]:
    import pyarrow as pa

    try:
        rows = (row for batch in _batches(path, columns) for row in batch.to_struct_array())
        for number, row in enumerate(rows, start=1):
            try:
                yield RawRecord(number=number, value=row.as_py())
            except UnicodeDecodeError as error:  # Arrow does not check text when it reads
                problem = MalformedRecordError("not-utf8", f"row {number}: {error.reason}")
                yield RawRecord(number=number, problem=problem, raw=bytes(error.object))
    except pa.ArrowException as error:
        kind = str(data_suffix(path)).removeprefix(".").capitalize()
        raise InputError(f"{path}: no valid {kind} ({error}); get the file again") from error


def _batches(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the rows of a Parquet file, or of an Arrow stream as `save_to_disk` writes it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def chosen(existing: list[str]) -> list[str]:
        for column in columns:
            if column not in existing:
                raise InputError(
                    f"{path}: column {column!r} is missing (found: {', '.join(existing)}); "
                    "rename a column, or name another format as FORMAT:PATH"
                )
        return list(columns) or existing

    if data_suffix(path) == ".parquet":
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
            yield from file.iter_batches(_ROWS_PER_BATCH, columns=chosen(file.schema_arrow.names))
        return
    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
        names = chosen(reader.schema.names)
        yield from (batch.select(names) for batch in reader)
