"""Print the rows of a query as a table, CSV or JSON, in bounded memory."""

from __future__ import annotations

import csv
import datetime
import io
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.text import Text

from encore.cli.output import compact_table
from encore.errors import InputError
from encore.terminal import out, say, visible

if TYPE_CHECKING:
    from rich.table import Table

    from encore.query.sql_query import QueryResult

#: Longer cells of a table are cut; the other formats have them whole.
_MAX_CELL = 80
#: Between two columns.
_GAP = 2
_NUMBERS = (int, float, Decimal)


def print_result(result: QueryResult, *, format_name: str, max_rows: int) -> None:
    """Write a result to stdout.

    Args:
        result: What to print.
        format_name: ``table`` for people; ``csv`` (RFC 4180, a null is an empty field) and
            ``json`` (a list of objects) for programs.
        max_rows: Of a table; what is left out is said on stderr.

    Raises:
        InputError: JSON with two columns of one name.
        EncoreError: The query failed on the way.
    """
    if format_name == "csv":
        _print_csv(result)
    elif format_name == "json":
        _print_json(result)
    else:
        _print_table(result, max_rows=max_rows)


def _print_table(result: QueryResult, *, max_rows: int) -> None:
    rows = list(itertools.islice(result.rows(), max_rows + 1))
    texts = [[_cell(value) for value in row] for row in rows[:max_rows]]
    shown = [[text[:_MAX_CELL] + "…" * (len(text) > _MAX_CELL) for text in row] for row in texts]
    if _fits(result.columns, shown):
        out.print(_aligned(result.columns, rows[:max_rows], shown))
    else:
        for number, row in enumerate(shown, start=1):
            _print_record(result.columns, row, number=number)
    if len(rows) > max_rows:
        say(f"the first {max_rows} rows; --rows N shows more, --format csv or json all of them")
    elif not rows:
        say("no rows")
    if shown != texts:
        say("long cells are cut; --format csv or json gives them whole")


def _fits(columns: Sequence[str], shown: Sequence[Sequence[str]]) -> bool:
    """Whether a table is no wider than the terminal; one without rows always fits."""
    widths = (max(map(cell_len, cells)) for cells in zip(columns, *shown, strict=True))
    return not shown or sum(widths) + _GAP * len(columns) <= out.width


def _aligned(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], shown: Sequence[Sequence[str]]
) -> Table:
    """A table with numbers to the right and everything else to the left."""
    table = compact_table(columns, shown, title="")
    for column, values in zip(table.columns, zip(*rows, strict=True), strict=False):
        is_number = all(value is None or isinstance(value, _NUMBERS) for value in values)
        column.justify = "right" if is_number else "left"
    return table


def _print_record(columns: Sequence[str], row: Sequence[str], *, number: int) -> None:
    """A row that is too wide for a table, one column a line."""
    out.print(Text(f"row {number}", style="bold"))
    width = max(map(cell_len, columns))
    for name, text in zip(columns, row, strict=True):
        out.print(f"  {visible(name):<{width}}  {visible(text)}", soft_wrap=True)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(json_value(value), ensure_ascii=False)
    return " ".join(text.split())


def _print_csv(result: QueryResult) -> None:
    clean = _cleaner()
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    for row in itertools.chain([result.columns], result.rows()):
        writer.writerow([clean(_field(value)) for value in row])
        sys.stdout.write(line.getvalue())
        line.seek(0)
        line.truncate()


def _field(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    plain = json_value(value)
    return plain if isinstance(plain, str | int | float) else json.dumps(plain, ensure_ascii=False)


def _print_json(result: QueryResult) -> None:
    repeated = [name for name, count in Counter(result.columns).items() if count > 1]
    if repeated:
        raise InputError(
            f"query: {repeated[0]!r} names several columns, which a JSON object cannot hold; name "
            "each with `as`"
        )
    clean = _cleaner()
    separator = "[\n"
    for row in result.rows():
        record = {name: json_value(value) for name, value in zip(result.columns, row, strict=True)}
        sys.stdout.write(separator + clean(json.dumps(record, ensure_ascii=False, allow_nan=False)))
        separator = ",\n"
    sys.stdout.write("[]\n" if separator == "[\n" else "\n]\n")


def json_value(value: Any) -> Any:
    """A value of a result as JSON has it: numbers stay exact, NaN and infinity become text.

    Times are ISO 8601, bytes hex digits, maps lists of [key, value].
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _cleaner() -> Callable[[Any], Any]:
    """Rated text is hostile: a terminal must not act on it. A file or pipe gets it as it is."""
    if not sys.stdout.isatty():
        return lambda value: value
    return lambda value: visible(value) if isinstance(value, str) else value
