"""Read tables that people keep in files of any format; a file with an error is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from encore.core.errors import InputError
from encore.data.sources.csv_records import read_csv
from encore.data.sources.local import SUFFIXES_TEXT, data_suffix, is_csv, read_records

CSV = ".csv"


def read_table(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each record of a file (`encore.data.sources.local.read_records`).

    Yields:
        The record's position, e.g. ``line 3`` or ``record 3``, and its values by column. An empty
        cell of a CSV file is "".

    Raises:
        InputError: The file does not exist, its suffix is unknown, or a record cannot be read.
    """
    if not path.is_file() or not data_suffix(path):
        raise InputError(f"{path}: no such file, or none of records; expected {SUFFIXES_TEXT}")
    unit = "line" if is_csv(path) or {".jsonl", ".ndjson"} & {*path.suffixes} else "record"
    for record in read_records(path):
        if record.problem is not None or not isinstance(record.value, dict):
            problem = record.problem or "expected an object"
            raise InputError(f"{path}, {unit} {record.number}: {problem}")
        yield f"{unit} {record.number}", record.value


def csv_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the position (e.g. ``line 3``) and the cells of each row of a CSV file (`read_csv`)."""
    for record in read_csv(path):
        yield f"line {record.number}", record.value
