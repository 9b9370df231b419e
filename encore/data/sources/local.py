"""Read records from local files: JSON lines, a JSON array or Parquet, also compressed by gzip."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from encore.core.errors import InputError
from encore.data.sources.raw_records import MalformedRecordError, RawRecord

SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet")
_ROWS_PER_BATCH = 256
#: With the default, and with `pre_buffer`, the reader holds the whole file in memory.
_BUFFER_BYTES = 1 << 20


def data_suffix(path: Path) -> str | None:
    """Return the one of `SUFFIXES` that a file name ends with, else None."""
    return next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), None)


def data_files(path: Path) -> tuple[Path, ...]:
    """Return the file itself, or the data files of a folder sorted by name.

    Raises:
        InputError: There is no data file, or it cannot be read.
    """
    with _readable(path):
        entries = [path] if path.is_file() else sorted(path.iterdir())
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


def read_records(path: Path, *, columns: Sequence[str] = ()) -> Iterator[RawRecord]:
    """Yield every record of a file in order.

    JSON lines and Parquet are read in constant memory, a JSON array as a whole. Blank lines are
    skipped. A line that is not UTF-8 or not JSON is yielded with its problem, so that the caller
    can count it.

    Args:
        path: The file. Its content, not its name, decides if it is compressed.
        columns: Columns that a Parquet file must have, and the only ones that are read; empty
            reads all.

    Raises:
        InputError: The file cannot be read: an incomplete gzip, a damaged array or Parquet, a
            missing column, no permission.
    """
    with _readable(path):
        if data_suffix(path) == ".parquet":
            yield from _parquet_records(path, columns)
            return
        with path.open("rb") as plain:
            # Downloads are often unpacked but keep ".gz" in their names.
            is_compressed = plain.peek(2).startswith(b"\x1f\x8b")
            stream = gzip.GzipFile(fileobj=plain) if is_compressed else plain
            if stream.peek(3).startswith(codecs.BOM_UTF8):
                stream.read(3)
            is_json = data_suffix(path) in (".json", ".json.gz")
            if is_json and stream.peek(100).lstrip().startswith(b"["):
                yield from _json_array(stream, name=str(path))
            else:
                yield from _json_lines(stream)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Name the file in errors of reading."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{path}: reading failed ({error}); give permission, or get the file again"
        ) from error


def _json_lines(stream: IO[bytes] | gzip.GzipFile) -> Iterator[RawRecord]:
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        problem, value = None, None
        try:
            value = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            problem = MalformedRecordError("not-utf8", f"byte {error.start}: {error.reason}")
        except (ValueError, RecursionError) as error:
            problem = MalformedRecordError("not-json", f"line {number}: {error}")
        yield RawRecord(number=number, value=value, problem=problem, raw=line)


def _json_array(stream: IO[bytes] | gzip.GzipFile, *, name: str) -> Iterator[RawRecord]:
    try:
        values = json.loads(stream.read())
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{name}: not valid JSON ({error}); write one object per line (.jsonl), or one array "
            "of objects"
        ) from error
    for number, value in enumerate(values, start=1):
        yield RawRecord(number=number, value=value)


def _parquet_records(path: Path, columns: Sequence[str]) -> Iterator[RawRecord]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
            existing = file.schema_arrow.names
            for column in columns:
                if column not in existing:
                    raise InputError(
                        f"{path}: column {column!r} is missing (found: {', '.join(existing)}); "
                        "rename a column, or name another format as FORMAT:PATH"
                    )
            batches = file.iter_batches(_ROWS_PER_BATCH, columns=list(columns) or None)
            rows = (row for batch in batches for row in batch.to_struct_array())
            for number, row in enumerate(rows, start=1):
                try:
                    yield RawRecord(number=number, value=row.as_py())
                except UnicodeDecodeError as error:  # Arrow does not check text when it reads
                    problem = MalformedRecordError("not-utf8", f"row {number}: {error.reason}")
                    yield RawRecord(number=number, problem=problem, raw=bytes(error.object))
    except pa.ArrowException as error:
        raise InputError(f"{path}: no valid Parquet ({error}); get the file again") from error
