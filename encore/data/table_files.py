"""Read tables and records that people keep in files: all of a file is right, or it is refused."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from encore.core.errors import InputError
from encore.data.sources.local import SUFFIXES, data_suffix, read_records

CSV = ".csv"
#: What stands between the cells of a table, by where the spreadsheet was made.
_SEPARATORS = ",;\t"
_MAX_CELL_BYTES = 32 << 20


def read_table(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row of a CSV file (`csv_rows`), or each record of a JSON or Parquet file.

    Returns:
        Where each one stands, ``line 3`` or ``record 3``, and its values.

    Raises:
        InputError: No such file, no known suffix; the first record that cannot be read.
    """
    if not path.is_file() or not (path.suffix == CSV or data_suffix(path)):
        known = ", ".join((CSV, *SUFFIXES))
        raise InputError(f"{path}: no such file, or none of records; expected {known}")
    if path.suffix == CSV:
        yield from csv_rows(path)
        return
    word = "line" if ".jsonl" in path.name else "record"
    for record in read_records(path):
        if record.problem is not None or not isinstance(record.value, dict):
            problem = record.problem or "expected an object"
            raise InputError(f"{path}, {word} {record.number}: {problem}")
        yield f"{word} {record.number}", record.value


def csv_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Each row of a CSV file, as people's spreadsheets save it; an empty cell is "".

    Args:
        path: Its header says what stands between cells: a comma, a semicolon or a tab.

    Returns:
        Where each row begins, ``line 3``, and its cells by column.

    Raises:
        InputError: No CSV in UTF-8, two columns of one name, a row with more cells than columns.
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
