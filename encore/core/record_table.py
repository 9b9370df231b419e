"""Rows of a result: a tuple of records that also becomes a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

from encore.core.errors import EncoreError

if TYPE_CHECKING:
    import pandas as pd

Record = TypeVar("Record")


class RecordTable(tuple[Record, ...]):
    """Tuple of dataclass records or dicts, with a column for each field in its tables.

    A field of a nested record has both names: ``accuracy.half`` becomes column ``accuracy_half``.
    """

    __slots__ = ()

    def to_arrow(self) -> Any:
        """Return the rows as a pyarrow table."""
        import pyarrow as pa

        return pa.Table.from_pylist([dict(_cells(row)) for row in self])

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas data frame.

        Raises:
            EncoreError: pandas is not installed.
        """
        try:
            frame: pd.DataFrame = self.to_arrow().to_pandas()
        except ImportError as error:
            raise EncoreError(
                "to_pandas() needs pandas, which is not installed: pip install pandas; or use "
                "to_arrow()"
            ) from error
        return frame

    def _repr_html_(self) -> str:
        """Return the rows as a table for a notebook."""
        rows = [dict(_cells(row)) for row in self]
        return html_table([*rows[0]] if rows else [], [[*row.values()] for row in rows])


def _cells(record: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    fields = record if isinstance(record, Mapping) else dataclasses.asdict(record)
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _cells(value, f"{prefix}{name}_")
        else:
            yield f"{prefix}{name}", value


def html_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return cells as an HTML table; texts are escaped."""
    lines = [("th", columns), *(("td", row) for row in rows)]
    body = "".join(
        f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"
        for tag, cells in lines
    )
    return f"<table>{body}</table>"
