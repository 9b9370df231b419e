"""Check that files hold a ratings table before any row is read: readable, columns, types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from encore.errors import InputError
from encore.schemas import RATINGS_CONTRACT

#: Columns that say where a rating comes from; they may be there or not.
PROVENANCE_COLUMNS = ("run_key", "judge")

_MAGIC = b"PAR1"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSchema:
    """One file's columns and its number of rows."""

    schema: pa.Schema
    num_rows: int


def read_file_schema(path: Path) -> FileSchema:
    """The schema of a Parquet file that holds a ratings table.

    Raises:
        InputError: Not a whole Parquet file, or a column is missing or of a wrong type.
    """
    _check_frame(path)
    try:
        metadata = pq.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: its Parquet footer cannot be read ({error})") from error
    check_schema(schema, label=str(path))
    return FileSchema(schema=schema, num_rows=metadata.num_rows)


def check_schema(schema: pa.Schema, *, label: str) -> None:
    """Refuse a schema without the contract's columns, or with types that cannot mean them."""
    missing = [name for name in RATINGS_CONTRACT.names if name not in schema.names]
    if missing:
        raise InputError(
            f"{label}: column {_listing(missing)} is missing; a ratings table has "
            f"{_listing(RATINGS_CONTRACT.names)}, this one has {_listing(schema.names)}"
        )
    # DuckDB does not tell names apart by case: of `Rating` and `rating` it might read the other.
    folded = [name.lower() for name in schema.names]
    twice = [name for name in RATINGS_CONTRACT.names if folded.count(name) > 1]
    if twice:
        raise InputError(
            f"{label}: column {_listing(twice)} is there more than once (upper and lower case "
            "count as the same); rename one"
        )
    for name, expected, is_fit in _EXPECTED_TYPES:
        found = schema.field(name).type
        if not is_fit(_value_type(found)):
            raise InputError(f"{label}: column {name} is {found}; expected {expected}")


def _check_frame(path: Path) -> None:
    """A Parquet file begins and ends with the same four bytes; a truncated one only begins so."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
            file.seek(max(path.stat().st_size - len(_MAGIC), 0))
            tail = file.read()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if not head:
        raise InputError(f"{path}: the file is empty; expected a Parquet file of ratings")
    if head != _MAGIC:
        raise InputError(f"{path}: not a Parquet file; expected a Parquet file of ratings")
    if tail != _MAGIC:
        raise InputError(f"{path}: the Parquet file breaks off; copy or write it again")


def _value_type(dtype: pa.DataType) -> pa.DataType:
    return dtype.value_type if pa.types.is_dictionary(dtype) else dtype


def _is_text(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(dtype)
        or pa.types.is_large_string(dtype)
        or pa.types.is_string_view(dtype)
    )


def _is_id(dtype: pa.DataType) -> bool:
    return _is_text(dtype) or bool(pa.types.is_integer(dtype))


def _is_number(dtype: pa.DataType) -> bool:
    # A column of nulls only has no better type.
    return bool(
        pa.types.is_floating(dtype)
        or pa.types.is_integer(dtype)
        or pa.types.is_decimal(dtype)
        or pa.types.is_null(dtype)
    )


_EXPECTED_TYPES: tuple[tuple[str, str, Callable[[pa.DataType], bool]], ...] = (
    ("pair_id", "text", _is_id),
    ("source", "text", _is_id),
    ("response", 'text, "chosen" or "rejected"', _is_text),
    ("rule_id", "text", _is_id),
    ("rating", "a number in [0, 1]", _is_number),
)


def _listing(names: Sequence[str]) -> str:
    return ", ".join(names)
