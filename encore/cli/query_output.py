"""Print the rows of a query as a table, CSV or JSON, in bounded memory."""

from __future__ import annotations

import csv
import itertools
import json
import math
import sys
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python
from rich.cells import cell_len

from encore.cli.output import compact_table
from encore.core.errors import InputError
from encore.core.terminal import out, say, visible, visible_json

if TYPE_CHECKING:
    from encore.tables.sql_query import QueryResult

#: Largest number of characters in a cell of a table. The other formats do not cut.
_MAX_CELL = 80
#: Spaces between two columns.
_GAP = 2


def print_result(result: QueryResult, *, format_name: str, max_rows: int) -> None:
    """Write a result to stdout.

    Args:
        result: Result of the query.
        format_name: ``table`` for people; ``csv`` (RFC 4180, a null is an empty field) and
            ``json`` (a list of objects) for programs.
        max_rows: Largest number of rows in a table. A line on stderr says if there are more.

    Raises:
        InputError: Two columns of a JSON object have the same name.
        EncoreError: The query failed while its rows were read.
    """
    if format_name == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        for row in itertools.chain([result.columns], result.rows()):
            writer.writerow([_clean(_field(value)) for value in row])
    elif format_name == "json":
        _print_json(result)
    else:
        _print_table(result, max_rows=max_rows)


def _print_table(result: QueryResult, *, max_rows: int) -> None:
    rows = list(itertools.islice(result.rows(), max_rows + 1))
    texts = [[_cell(value) for value in row] for row in rows[:max_rows]]
    cells = [[text[:_MAX_CELL] + "…" * (len(text) > _MAX_CELL) for text in row] for row in texts]
    widths = (max(map(cell_len, column)) for column in zip(result.columns, *cells, strict=True))
    if not cells or sum(widths) + _GAP * len(result.columns) <= out.width:
        out.print(compact_table(result.columns, cells))
    else:
        for number, row in enumerate(cells, start=1):  # too wide: one line per column
            fields = zip(result.columns, row, strict=True)
            out.print(compact_table((f"row {number}", ""), [*fields]))
    if len(rows) > max_rows:
        say(f"the first {max_rows} rows; --rows N shows more, --format csv or json all of them")
    elif not rows:
        say("no rows")
    if cells != texts:
        say("long cells are cut; --format csv or json gives them whole")


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else " ".join(_text(value).split())


def _field(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float) else _text(value)


def _text(value: Any) -> str:
    plain = json_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _print_json(result: QueryResult) -> None:
    repeated = [name for name, count in Counter(result.columns).items() if count > 1]
    if repeated:
        raise InputError(
            f"query: {repeated[0]!r} names several columns, which a JSON object cannot hold; name "
            "each with `as`"
        )
    separator = "[\n"
    for row in result.rows():
        record = dict(zip(result.columns, map(json_value, row), strict=True))
        sys.stdout.write(separator + visible_json(json.dumps(record, ensure_ascii=False)))
        separator = ",\n"
    sys.stdout.write("[]\n" if separator == "[\n" else "\n]\n")


def json_value(value: Any) -> Any:
    """Convert a value of a result for JSON: numbers stay exact, NaN and infinity become text.

    Times become ISO 8601, bytes hex digits, and maps lists of [key, value].
    """
    if isinstance(value, dict):
        return {str(name): json_value(field) for name, field in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(element) for element in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return to_jsonable_python(value, bytes_mode="hex", fallback=str)


def _clean(value: Any) -> Any:
    """Escape control characters of a text if stdout is a terminal: rated texts may be hostile."""
    return visible(value) if isinstance(value, str) and sys.stdout.isatty() else value
