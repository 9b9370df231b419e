"""Read records from JSON: one a line, one value after another, an array, or inside an object."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from io import BufferedReader
from itertools import chain
from typing import Any

from encore.core.errors import InputError
from encore.data.sources.file_streams import MAX_RECORD_BYTES, lines_of, refuse_long_value, too_long
from encore.data.sources.raw_records import MalformedRecordError, RawRecord

#: A JSON value of several lines is decoded as a whole.
MAX_DOCUMENT_BYTES = 1 << 30
_CARRIAGE_RETURNS = """; lines end with a carriage return alone, convert them: tr '\\r' '\\n'"""
#: White space, and the mark before each record of a JSON text sequence (RFC 7464).
_SPACE = " \t\r\n\x1e"


def read_json(stream: BufferedReader, *, name: str) -> Iterator[RawRecord]:
    """Yield every record of a JSON file in order.

    Lines of one value each are read in constant memory. Everything else is read as a whole: an
    array, indented values one after another, or an object that holds one list of records.

    Args:
        stream: The file in UTF-8.
        name: Name of the file in messages.

    Raises:
        InputError: It is not lines, and no valid JSON; or a record is too long.
    """
    head, filled = list[bytes](), list[bytes]()
    for line in iter(lambda: stream.readline(MAX_RECORD_BYTES + 1), b""):
        head.append(line)
        if line.strip():
            filled.append(line)
            if len(filled) > 1 or not _is_value(line):
                break
    if filled and _is_document(filled):
        yield from _document_records(b"".join(head), stream, name=name)
    else:
        yield from _line_records(head, stream, name=name)


def _is_value(line: bytes) -> bool:
    """Return True if a line is a whole JSON value."""
    try:
        json.loads(line.strip(_SPACE.encode()))
    except (ValueError, RecursionError):
        return False
    return True


def _is_document(head: Sequence[bytes]) -> bool:
    """Return True if a file is decoded as a whole, by its first one or two lines with text.

    A line that is no JSON value and ends like an opened list or object begins an indented value. A
    line that is damaged ends otherwise, or another line follows that is a value.
    """
    first = head[0].strip(_SPACE.encode())
    if _is_value(first):
        return len(head) == 1 and first[:1] in (b"[", b"{")
    return first[:1] == b"[" or (first[:1] == b"{" and first[-1:] in (b"{", b"[", b","))


def _line_records(head: list[bytes], stream: BufferedReader, *, name: str) -> Iterator[RawRecord]:
    later_lines = lines_of(stream, name=name, first_number=len(head) + 1)
    for number, line in enumerate(chain(head, later_lines), start=1):
        if len(line) > MAX_RECORD_BYTES:
            raise too_long(f"{name}, line {number}")
        if not line.strip():
            continue
        problem, value = None, None
        try:
            value = json.loads(line.decode("utf-8").strip(_SPACE))
        except UnicodeDecodeError as error:
            problem = MalformedRecordError("not-utf8", f"byte {error.start}: {error.reason}")
        except (ValueError, RecursionError) as error:
            advice = _CARRIAGE_RETURNS if b"\r" in line.strip() else ""
            problem = MalformedRecordError("not-json", f"line {number}: {error}{advice}")
        yield RawRecord(number=number, value=value, problem=problem, raw=line)


def _document_records(head: bytes, stream: BufferedReader, *, name: str) -> Iterator[RawRecord]:
    content = head + stream.read(MAX_DOCUMENT_BYTES + 1 - len(head))
    if len(content) > MAX_DOCUMENT_BYTES:
        raise InputError(
            f"{name}: JSON of more than {MAX_DOCUMENT_BYTES >> 20} MiB, which is not one value a "
            "line and is decoded as a whole; write one object per line (.jsonl)"
        )
    try:
        values = _values_of(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{name}: not valid JSON ({error}); write one object per line (.jsonl), or one array "
            "of objects"
        ) from error
    records = values if len(values) > 1 else _records_within(values[0], name=name)
    # A record alone has the number of its line.
    first_number = 1 + (records == values) * (head[: len(head) - len(head.lstrip())].count(b"\n"))
    for number, value in enumerate(records, start=first_number):
        if len(content) > MAX_RECORD_BYTES:  # a shorter file has no such record
            refuse_long_value(value, position=f"{name}, record {number}")
        yield RawRecord(number=number, value=value)


def _values_of(text: str) -> list[Any]:
    """Return the values that stand in a text one after another: any one value, or objects."""
    decoder, values = json.JSONDecoder(), list[Any]()
    end = len(text.rstrip(_SPACE))
    start = len(text) - len(text.lstrip(_SPACE))
    while start < end:
        value, start = decoder.raw_decode(text, start)
        values.append(value)
        while start < end and text[start] in _SPACE:
            start += 1
    if len(values) > 1 and not all(isinstance(value, dict) for value in values):
        raise ValueError(f"{len(values)} values one after another, and not all are objects")
    return values


def _records_within(value: Any, *, name: str) -> list[Any]:
    """Return the records of a file that is one value.

    That is an array; an object with one list of records; columns by row number, as pandas writes
    them; or a record itself.

    Raises:
        InputError: An object has several lists of records.
    """
    if not isinstance(value, dict):
        return value if isinstance(value, list) else [value]
    columns = [*value.values()]
    if columns and all(map(_is_column, columns)):
        rows = dict.fromkeys(row for column in columns for row in column)
        return [{key: column.get(row) for key, column in value.items()} for row in rows]
    lists = {key: inner for key, inner in value.items() if _has_records(inner)}
    if len(lists) > 1:
        raise InputError(
            f"{name}: an object with several lists of records ({', '.join(lists)}); write the "
            "records of one to a file of their own, one object per line (.jsonl)"
        )
    return next(iter(lists.values()), [value])


def _is_column(value: Any) -> bool:
    """Return True for the cells of a column by row number."""
    return isinstance(value, dict) and bool(value) and all(map(str.isdigit, value))


def _has_records(value: Any) -> bool:
    """Return True for a list of objects that are no turns of a conversation."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(row, dict) and not {"role", "from"} & row.keys() for row in value)
    )
