"""Read tables that people keep in CSV, JSON or Parquet files; a file with an error is refused."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from encore.core.errors import InputError
from encore.data.sources.local import SUFFIXES, data_suffix, read_records

CSV = ".csv"
#: Separators of cells; spreadsheet programs of different countries write different ones.
_SEPARATORS = ",;\t"
_MAX_CELL_BYTES = 32 << 20


def read_table(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row of a CSV file (`csv_rows`), or each record of a JSON or Parquet file.

    Yields:
        The row's position, e.g. ``line 3`` or ``record 3``, and its values by column.

    Raises:
        InputError: The file does not exist, its suffix is unknown, or a record cannot be read.
    """
    if not path.is_file() or not (path.suffix == CSV or data_suffix(path)):
        suffixes = ", ".join((CSV, *SUFFIXES))
        raise InputError(f"{path}: no such file, or none of records; expected {suffixes}")
    if path.suffix == CSV:
        yield from csv_rows(path)
        return
    unit = "line" if ".jsonl" in path.name else "record"
    for record in read_records(path):
        if record.problem is not None or not isinstance(record.value, dict):
            problem = record.problem or "expected an object"
            raise InputError(f"{path}, {unit} {record.number}: {problem}")
        yield f"{unit} {record.number}", record.value


def csv_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each row of a CSV file as spreadsheet programs save it; an empty cell is "".

    Args:
        path: The file. The separator, comma, semicolon or tab, is the most frequent in its header.

    Yields:
        The position of the row's first line, e.g. ``line 3``, and its cells by column.

    Raises:
        InputError: The file is not CSV in UTF-8, two columns have the same name, or a row has more
            cells than columns.
    """
    csv.field_size_limit(_MAX_CELL_BYTES)
    last_line = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            separator = max(_SEPARATORS, key=file.readline().count)
            file.seek(0)
            rows = csv.DictReader(file, delimiter=separator, restval="", strict=True)
            columns = list(rows.fieldnames or ())
            if repeated := [name for name in columns if columns.count(name) > 1]:
                raise InputError(f"{path}, line 1: column {repeated[0]!r} is there twice")
            for row in rows:
                if None in row:
                    raise InputError(
                        f"{path}, line {rows.line_num}: more cells than the header has columns; "
                        "put a text with separators in quotes"
                    )
                last_line = rows.line_num
                num_breaks = sum(cell.count("\n") for cell in row.values())
                yield f"line {last_line - num_breaks}", row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"{path}: {error} (after line {last_line}); expected a CSV file in UTF-8"
        ) from error
