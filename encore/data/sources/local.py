"""Read records from local files: JSON lines, a JSON array, Parquet; gzip too."""

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
    with _readable(path):
        entries = [path] if path.is_file() else sorted(path.iterdir())
    found = tuple(
        one
        for one in entries
        if one.is_file() and data_suffix(one) and (one == path or not one.name.startswith("."))
    )
    if not found:
        raise InputError(
            f"{path}: no data file; expected one that ends in {', '.join(SUFFIXES)}, or a folder "
            "of such files"
        )
    return found


def read_records(path: Path, *, columns: Sequence[str] = ()) -> Iterator[RawRecord]:
    """Every record of a file in order: JSON lines and Parquet in constant memory, an array whole.

    Blank lines are no records. A record that cannot be read (no UTF-8, no JSON) is
    given with its problem, so that the caller can count it.

    Args:
        path: The file; its content says whether it is compressed.
        columns: Of a Parquet file, read only these and require them (none: all there are).

    Raises:
        InputError: a gzip that breaks off, a damaged array or Parquet, a missing column, no
            permission.
    """
    with _readable(path):
        if data_suffix(path) == ".parquet":
            yield from _parquet_records(path, columns)
            return
        with path.open("rb") as plain:
            # The content decides, not the name: downloads are often unpacked but keep ".gz".
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
    """Say which file it was when reading fails."""
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
            found = file.schema_arrow.names
            for column in columns:
                if column not in found:
                    raise InputError(
                        f"{path}: column {column!r} is missing (found: {', '.join(found)}); "
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
