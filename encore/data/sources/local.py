"""Read records from local files, one at a time: JSON lines, a JSON array, Parquet; gzip too."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encore.data.sources.raw_records import MalformedRecordError, RawRecord
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
_CHUNK_BYTES = 1 << 20
_SPACE = re.compile(r"[ \t\n\r]*")


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
            code = f"import duckdb; duckdb.read_csv('{path}').write_parquet('{path.stem}.parquet')"
            is_csv = path.suffix.lower() in {".csv", ".tsv"}
            raise InputError(
                f"{path}: unknown kind of file; expected {', '.join(SUFFIXES)}"
                + (f'; convert it with: python -c "{code}"' if is_csv else "")
            )
        return (path,)
    with _readable(path):
        entries = [entry for entry in sorted(path.iterdir()) if entry.is_file()]
    found = tuple(one for one in entries if data_suffix(one) and not one.name.startswith("."))
    if not found:
        raise InputError(
            f"{path}: no data file in this folder; expected one that ends in {', '.join(SUFFIXES)}"
        )
    return found


def read_records(path: Path, *, columns: Sequence[str] = ()) -> Iterator[RawRecord]:
    """Every record of a file in order, in constant memory.

    Blank lines are no records. A record that cannot be read (no UTF-8, no JSON, too long) is
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


# --- JSON ---------------------------------------------------------------------------------------


def _json_records(path: Path) -> Iterator[RawRecord]:
    with path.open("rb") as plain:
        # The content decides, not the name: downloads are often unpacked but keep their ".gz".
        compressed = plain.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        plain.seek(0)
        stream = gzip.GzipFile(fileobj=plain) if compressed else plain
        start = len(_UTF8_BOM) if stream.read(len(_UTF8_BOM)) == _UTF8_BOM else 0
        stream.seek(start)
        while (first := stream.read(1)) and first.isspace():
            pass
        stream.seek(start)
        if first == b"[" and data_suffix(path) in (".json", ".json.gz"):
            for number, value in enumerate(_array_values(stream, name=str(path)), start=1):
                yield RawRecord(number=number, value=value)
        else:
            yield from _json_lines(stream)


def _json_lines(stream: BufferedIOBase) -> Iterator[RawRecord]:
    number = 0
    while line := stream.readline(MAX_RECORD_BYTES + 1):
        number += 1
        problem, value = None, None
        if len(line) > MAX_RECORD_BYTES:
            problem = MalformedRecordError(
                "too-long", f"the line has more than {MAX_RECORD_BYTES:,} bytes"
            )
            rest = line
            line = line[:1000]
            while rest and not rest.endswith(b"\n"):
                rest = stream.readline(MAX_RECORD_BYTES)
        elif not line.strip():
            continue
        else:
            try:
                value = json.loads(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                problem = MalformedRecordError("not-utf8", f"byte {error.start}: {error.reason}")
            except (ValueError, RecursionError) as error:
                problem = MalformedRecordError("not-json", f"line {number}: {error}")
        yield RawRecord(number=number, value=value, problem=problem, raw=line)


def _array_values(stream: BufferedIOBase, *, name: str) -> Iterator[Any]:
    """Each element of one JSON array, read without holding the whole array.

    Raises:
        InputError: not valid JSON; after that nothing can be told apart, so the file is refused.
    """
    text = _ArrayText(stream, name=name)
    separator = text.next_character()  # "["
    if text.next_character(is_consumed=False) == "]":
        separator = text.next_character()
    while separator != "]":
        yield text.next_value()
        separator = text.next_character()
        if separator not in (",", "]"):
            raise text.invalid(f"expected ',' or ']', found {separator or 'the end of the file'!r}")
    if text.next_character(is_consumed=False):
        raise text.invalid("text after the array's closing bracket")


class _ArrayText:
    """Decoded text that is read on demand and dropped once consumed."""

    def __init__(self, stream: BufferedIOBase, *, name: str) -> None:
        self._stream = stream
        self._name = name
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._json = json.JSONDecoder()
        self._text = ""
        self._position = 0
        self._num_dropped = 0
        self._is_at_end = False

    def invalid(self, what: str) -> InputError:
        near = self._num_dropped + self._position
        return InputError(
            f"{self._name}: not valid JSON near character {near}: {what}; "
            "write one object per line (.jsonl), or one array of objects"
        )

    def next_character(self, *, is_consumed: bool = True) -> str:
        """The next character that is no white space, or nothing at the end of the file."""
        while True:
            space = _SPACE.match(self._text, self._position)
            assert space is not None
            self._position = space.end()
            character = self._text[self._position : self._position + 1]
            if character or self._is_at_end:
                self._position += is_consumed and len(character)
                return character
            self._read_more()

    def next_value(self) -> Any:
        self.next_character(is_consumed=False)
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._position)
            except RecursionError as error:
                raise self.invalid("nested too deeply") from error
            except ValueError as error:
                if self._is_at_end:
                    raise self.invalid(str(error)) from error
            else:
                # A number that ends where the buffer ends may go on in the file.
                if end < len(self._text) or self._is_at_end:
                    self._position = end
                    return value
            self._read_more()

    def _read_more(self) -> None:
        self._num_dropped += self._position
        self._text = self._text[self._position :]
        self._position = 0
        # As much again as is there, so that a long element is not scanned once per chunk.
        data = self._stream.read(max(_CHUNK_BYTES, len(self._text)))
        self._is_at_end = not data
        try:
            self._text += self._utf8.decode(data, final=self._is_at_end)
        except UnicodeDecodeError as error:
            raise self.invalid(f"not UTF-8: {error.reason}") from error


# --- Parquet ------------------------------------------------------------------------------------


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
            number = 0
            for batch in file.iter_batches(_ROWS_PER_BATCH, columns=list(columns) or None):
                yield from _rows(batch, first_number=number + 1)
                number += batch.num_rows
    except pa.ArrowException as error:
        raise InputError(f"{path}: no valid Parquet ({error}); get the file again") from error


def _rows(batch: pa.RecordBatch, *, first_number: int) -> Iterator[RawRecord]:
    try:
        values = batch.to_pylist()
    except UnicodeDecodeError as error:
        # Arrow does not check text when it reads; look for the row that is to blame.
        if batch.num_rows > 1:
            for offset in range(batch.num_rows):
                yield from _rows(batch.slice(offset, 1), first_number=first_number + offset)
        else:
            problem = MalformedRecordError("not-utf8", f"row {first_number}: {error.reason}")
            yield RawRecord(number=first_number, problem=problem, raw=bytes(error.object))
    else:
        for offset, value in enumerate(values):
            yield RawRecord(number=first_number + offset, value=value)
