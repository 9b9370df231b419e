"""Check that a file or table has the columns of a ratings table, before any row is read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from encore.errors import InputError
from encore.schemas import RATINGS_CONTRACT

#: Columns that say where a rating comes from; they may be there or not.
PROVENANCE_COLUMNS = ("run_key", "judge")

_TEXT = (types.is_string, types.is_large_string, types.is_string_view)
_ID = (*_TEXT, types.is_integer)
#: A column of nulls only has no better type.
_NUMBER = (types.is_floating, types.is_integer, types.is_decimal, types.is_null)
_EXPECTED = {
    "pair_id": ("text", _ID),
    "source": ("text", _ID),
    "response": ('text, "chosen" or "rejected"', _TEXT),
    "rule_id": ("text", _ID),
    "rating": ("a number in [0, 1]", _NUMBER),
}


def read_footer(path: Path) -> tuple[pa.Schema, int]:
    """The checked schema of a Parquet file, and its number of rows.

    Raises:
        InputError: Not a whole Parquet file, or a column is missing or of a wrong type.
    """
    try:
        metadata = pq.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{path}: cannot be read as a Parquet file of ratings ({error}); copy or write it again"
        ) from error
    check_schema(schema, label=str(path))
    return schema, metadata.num_rows


def check_schema(schema: pa.Schema, *, label: str) -> None:
    """Refuse a schema without the contract's columns, or with types that cannot mean them.

    Raises:
        InputError: The column and what was expected.
    """
    missing = [name for name in RATINGS_CONTRACT.names if name not in schema.names]
    if missing:
        raise InputError(
            f"{label}: column {', '.join(missing)} is missing; a ratings table has "
            f"{', '.join(RATINGS_CONTRACT.names)}, this one has {', '.join(schema.names)}"
        )
    # DuckDB does not tell names apart by case: of `Rating` and `rating` it might read the other.
    folded = [name.lower() for name in schema.names]
    twice = [name for name in RATINGS_CONTRACT.names if folded.count(name) > 1]
    if twice:
        raise InputError(
            f"{label}: column {', '.join(twice)} is there more than once (upper and lower case "
            "count as the same); rename one"
        )
    for name, (expected, allowed) in _EXPECTED.items():
        found = schema.field(name).type
        value_type = found.value_type if types.is_dictionary(found) else found
        if not any(is_fit(value_type) for is_fit in allowed):
            raise InputError(f"{label}: column {name} is {found}; expected {expected}")
