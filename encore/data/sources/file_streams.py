"""Open files of text as UTF-8 bytes, whatever compressed them and whichever Unicode they are in."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from encore.core.errors import InputError

#: A longer line is no record: decoded it takes several times as much memory.
MAX_RECORD_BYTES = 64 << 20


def _arrow_decompressor(stream: Any, *, codec: str) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(stream, "r"), codec)


#: Functions that open a compressed file, by the bytes that it begins with.
_DECOMPRESSORS: Mapping[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"\x28\xb5\x2f\xfd": partial(_arrow_decompressor, codec="zstd"),
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"BZh": bz2.BZ2File,
    b"\x04\x22\x4d\x18": partial(_arrow_decompressor, codec="lz4"),
}
#: Files that hold no text, by the bytes that they begin with.
_NO_TEXT: Mapping[bytes, str] = {
    b"PK\x03\x04": "a ZIP archive or an Excel workbook; unpack it, or save its sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an Excel workbook; save its sheet as CSV",
    b"SQLite format 3": "an SQLite database; export its table as CSV",
    b"%PDF": "a PDF document; it has no records",
}


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Name the file in errors of reading."""
    try:
        yield
    except (OSError, EOFError, zlib.error, lzma.LZMAError, UnicodeError) as error:
        raise InputError(
            f"{path}: reading failed ({error}); give permission, or get the file again"
        ) from error


@contextmanager
def open_utf8(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file decompressed, in UTF-8 and without its byte-order mark.

    Its content, not its name, decides what it is: gzip, zstd, xz, bzip2 or LZ4, or none; UTF-8,
    UTF-16 or UTF-32.

    Raises:
        InputError: It is no text but an archive, a workbook, ….
    """
    with path.open("rb") as plain:
        beginning = plain.peek(16)
        for signature, meaning in _NO_TEXT.items():
            if beginning.startswith(signature):
                raise InputError(f"{path}: it is {meaning}")
        stream: io.BufferedReader = plain
        for signature, decompressed in _DECOMPRESSORS.items():
            if beginning.startswith(signature):
                stream = io.BufferedReader(decompressed(plain))
                break
        beginning = stream.peek(4)
        encoding = json.detect_encoding(beginning[:4])  # for any text that begins in ASCII
        if encoding.removesuffix("-sig") != "utf-8":
            import pyarrow as pa

            transcoded = pa.transcoding_input_stream(pa.PythonFile(stream, "r"), encoding, "utf-8")
            stream = io.BufferedReader(transcoded)
        elif beginning.startswith(codecs.BOM_UTF8):
            stream.read(len(codecs.BOM_UTF8))
        yield stream


def lines_of(stream: io.BufferedReader, *, name: str, first_number: int = 1) -> Iterator[bytes]:
    """Yield the lines of a file; refuse one that is too long before all of it is read."""
    lines = iter(lambda: stream.readline(MAX_RECORD_BYTES + 1), b"")
    for number, line in enumerate(lines, start=first_number):
        if len(line) > MAX_RECORD_BYTES:
            raise too_long(f"{name}, line {number}")
        yield line


def refuse_long_value(value: Any, *, position: str) -> None:
    """Refuse a decoded record that is longer than `MAX_RECORD_BYTES` as JSON."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text.encode("utf-8", "surrogatepass")) > MAX_RECORD_BYTES:
        raise too_long(position)


def too_long(position: str) -> InputError:
    """Return the error of a record above `MAX_RECORD_BYTES`."""
    limit = f"longer than {MAX_RECORD_BYTES >> 20} MiB"
    return InputError(f"{position}: {limit}, the limit of a record; leave it out")
