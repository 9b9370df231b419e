"""Read records from tables of separated cells: CSV and TSV."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from encore.core.errors import InputError
from encore.data.sources.file_streams import MAX_RECORD_BYTES, lines_of, open_utf8, readable
from encore.data.sources.raw_records import RawRecord

#: Separators of cells; spreadsheet programs of different countries write different ones.
_SEPARATORS = ",;\t"
#: A carriage return alone ends a line, too.
_AFTER_CARRIAGE_RETURN = re.compile(r"(?<=\r)(?=[^\n])")


def read_csv(path: Path) -> Iterator[RawRecord]:
    """Yield each row of a CSV or TSV file as spreadsheet programs save it; cells are text, or "".

    The most frequent of comma, semicolon and tab in the header separates cells. A row has the
    number of its first line.

    Raises:
        InputError: The file is not CSV in Unicode, two columns have the same name, or a row has
            more cells than columns.
    """
    csv.field_size_limit(MAX_RECORD_BYTES)
    last_line = 0
    with readable(path), open_utf8(path) as stream:
        try:
            texts = (line.decode("utf-8") for line in lines_of(stream, name=str(path)))
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
    with readable(path), open_utf8(path) as stream:
        return _separator_of(stream.readline(MAX_RECORD_BYTES).decode("utf-8", "replace"))


def _separator_of(header: str) -> str:
    return max(_SEPARATORS, key=header.count)
