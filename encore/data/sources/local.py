"""Read records from local files, one at a time: JSON lines, a JSON array, Parquet; gzip too."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING

from encore.data.sources.json_array import iter_array
from encore.data.sources.malformed import MalformedRecordError
from encore.data.sources.raw import RawRecord
from encore.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet")
#: A longer line is set aside instead of read into memory.
MAX_RECORD_BYTES = 32 << 20

_GZIP_MAGIC = b"\x1f\x8b"
_UTF8_BOM = b"\xef\xbb\xbf"
_ROWS_PER_BATCH = 256
#: Without it (and with `pre_buffer`, the default) a whole file is held while it is read.
_BUFFER_BYTES = 1 << 20


def data_suffix(path: Path) -> str | None:
    """Which of `SUFFIXES` a file name ends with, if any."""
    return next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), None)


def data_files(path: Path) -> tuple[Path, ...]:
    """The file itself, or the data files of a folder by name.

    Raises:
        InputError: not a data file; a folder without one; not readable.
    """
    if path.is_file():
        if data_suffix(path) is None:
            raise InputError(
                f"{path}: unknown kind of file; expected {', '.join(SUFFIXES)}{_conversion(path)}"
            )
        return (path,)
    with _readable(path):
        entries = sorted(path.iterdir())
    files = [entry for entry in entries if entry.is_file() and not entry.name.startswith(".")]
    found = tuple(file for file in files if data_suffix(file))
    if not found:
        raise InputError(
            f"{path}: no data file in this folder; expected one that ends in {', '.join(SUFFIXES)}"
        )
    return found


def _conversion(path: Path) -> str:
    """How to make a CSV file readable."""
    if path.suffix.lower() not in {".csv", ".tsv"}:
        return ""
    code = f"import duckdb; duckdb.read_csv('{path}').write_parquet('{path.stem}.parquet')"
    return f'; convert it with: python -c "{code}"'


def read_records(path: Path, *, columns: Sequence[str] = ()) -> Iterator[RawRecord]:
    """Every record of a file in order, in constant memory.

    Blank lines are no records. A record that cannot be read (no UTF-8, no JSON, too long) is
    given with its problem, so that the caller can count it.

    Args:
        path: The file; its content says whether it is compressed.
        columns: Of a Parquet file, read only these and require them (none: all there are).

    Raises:
        InputError: a gzip that breaks off, damaged Parquet, a missing column, no permission.
    """
    with _readable(path):
        if data_suffix(path) == ".parquet":
            yield from _parquet_records(path, columns)
        else:
            yield from _json_records(path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say which file it was when reading fails."""
    try:
        yield
    except PermissionError as error:
        raise InputError(f"{path}: no permission to read it; change it with chmod") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{path}: the gzip data break off or are damaged ({error}); get the file again"
        ) from error
    except OSError as error:
        raise InputError(f"{path}: reading failed: {error}") from error


def _json_records(path: Path) -> Iterator[RawRecord]:
    with path.open("rb") as plain:
        # The content decides, not the name: downloads are often unpacked but keep their ".gz".
        compressed = plain.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        plain.seek(0)
        stream = gzip.GzipFile(fileobj=plain) if compressed else plain
        if _first_byte(stream) == b"[" and data_suffix(path) in (".json", ".json.gz"):
            for number, value in enumerate(iter_array(stream, name=str(path)), start=1):
                yield RawRecord(number=number, value=value)
        else:
            yield from _json_lines(stream)


def _first_byte(stream: BufferedIOBase) -> bytes:
    """The first byte that says something; the stream is back at the start, after a BOM."""
    start = len(_UTF8_BOM) if stream.read(len(_UTF8_BOM)) == _UTF8_BOM else 0
    stream.seek(start)
    while (first := stream.read(1)) and first.isspace():
        pass
    stream.seek(start)
    return first


def _json_lines(stream: BufferedIOBase) -> Iterator[RawRecord]:
    number = 0
    while line := stream.readline(MAX_RECORD_BYTES + 1):
        number += 1
        if len(line) > MAX_RECORD_BYTES:
            yield RawRecord(number=number, problem=_skip_line(stream, line), raw=line[:1000])
        elif line.strip():
            yield _json_line(line, number=number)


def _skip_line(stream: BufferedIOBase, line: bytes) -> MalformedRecordError:
    while line and not line.endswith(b"\n"):
        line = stream.readline(MAX_RECORD_BYTES)
    return MalformedRecordError("too-long", f"the line has more than {MAX_RECORD_BYTES:,} bytes")


def _json_line(line: bytes, *, number: int) -> RawRecord:
    try:
        return RawRecord(number=number, value=json.loads(line.decode("utf-8")), raw=line)
    except UnicodeDecodeError as error:
        problem = MalformedRecordError("not-utf8", f"byte {error.start}: {error.reason}")
    except (ValueError, RecursionError) as error:
        problem = MalformedRecordError("not-json", f"line {number}: {error}")
    return RawRecord(number=number, problem=problem, raw=line)


def _parquet_records(path: Path, columns: Sequence[str]) -> Iterator[RawRecord]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
            _require_columns(path, file.schema_arrow.names, columns)
            number = 0
            for batch in file.iter_batches(_ROWS_PER_BATCH, columns=list(columns) or None):
                yield from _rows(batch, first_number=number + 1)
                number += batch.num_rows
    except pa.ArrowException as error:
        raise InputError(f"{path}: no valid Parquet ({error}); get the file again") from error


def _require_columns(path: Path, found: Sequence[str], columns: Sequence[str]) -> None:
    missing = [column for column in columns if column not in found]
    if missing:
        raise InputError(
            f"{path}: column {missing[0]!r} is missing (found: {', '.join(found)}); "
            "rename a column, or name another format as FORMAT:PATH"
        )


def _rows(batch: pa.RecordBatch, *, first_number: int) -> Iterator[RawRecord]:
    try:
        for offset, value in enumerate(batch.to_pylist()):
            yield RawRecord(number=first_number + offset, value=value)
    except UnicodeDecodeError:
        # Arrow does not check text when it reads; look for the row that is to blame.
        for offset in range(batch.num_rows):
            yield _row(batch.slice(offset, 1), number=first_number + offset)


def _row(batch: pa.RecordBatch, *, number: int) -> RawRecord:
    try:
        return RawRecord(number=number, value=batch.to_pylist()[0])
    except UnicodeDecodeError as error:
        problem = MalformedRecordError("not-utf8", f"row {number}: {error.reason}")
        return RawRecord(number=number, problem=problem, raw=bytes(error.object))
