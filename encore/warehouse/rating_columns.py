"""Check the columns of tables of ratings, and say which column may be the one that is missing."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from encore.core.errors import InputError, did_you_mean
from encore.data.schemas import RATINGS_CONTRACT
from encore.warehouse.rating_layouts import SIMILAR_NAMES, WIDE_KEYS, is_published, rule_columns

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
_EXPECTED_OF_RULE = (
    (
        "numbers in [0, 1]: without rule_id and rating every column beside pair_id, source and "
        "response is a rule; drop a column that is none, or name the rules with --rule-columns"
    ),
    _NUMBER,
)


def read_schema(path: Path, *, named: Sequence[str] = ()) -> pa.Schema:
    """Read and check the schema of a Parquet file of ratings.

    Args:
        path: The file.
        named: The columns that were named as rules.

    Raises:
        InputError: The file is not a complete Parquet file, or a column is missing or of a wrong
            type.
    """
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{path}: cannot be read as a Parquet file of ratings ({error}); copy or write it again"
        ) from error
    check_schema(schema, label=str(path), named=named)
    return schema


def check_schema(schema: pa.Schema, *, label: str, named: Sequence[str] = ()) -> None:
    """Refuse a schema that lacks a column of the ratings contract or has a wrong type for it.

    Args:
        schema: Schema of a file or a table.
        label: Name of the file or table in messages.
        named: The columns that were named as rules.

    Raises:
        InputError: A column is wrong; the message names it and what was expected.
    """
    # DuckDB ignores case in names: given `Rating` and `rating`, it might read the wrong column.
    folded = [name.lower() for name in schema.names]
    rules = rule_columns(schema, named=named)
    names, allowed_types = RATINGS_CONTRACT.names, _EXPECTED
    if unknown := [name for name in named if name not in schema.names]:
        raise InputError(
            f"{label}: --rule-columns names {', '.join(unknown)}, and the columns are "
            f"{', '.join(schema.names)}{did_you_mean(unknown[0], schema.names)}"
        )
    if rules is not None:
        names = schema.names if not named else ["pair_id", "response", *named]
        allowed_types = {name: _EXPECTED[name] for name in WIDE_KEYS if name in schema.names}
        allowed_types |= {} if is_published(schema) else dict.fromkeys(rules, _EXPECTED_OF_RULE)
    if {"label", "rule_id"} <= {*folded} and "pair_id" not in folded:
        raise InputError(
            f"{label}: a table of labels of single responses, and this needs ratings of pairs "
            f"({', '.join(names)}); read it with `encore labels {label}`"
        )
    if {"chosen", "rejected"} <= {*folded} and "rating" not in folded and rules is None:
        raise InputError(
            f"{label}: preference pairs without ratings; `encore ingest STUDY {label}` and "
            "`encore rate STUDY --judge JUDGE` rate them"
        )
    missing = [name for name in names if name not in schema.names]
    if "source" in missing and not {*SIMILAR_NAMES["source"]} & {*folded}:
        missing.remove("source")  # then all pairs are of one source
        allowed_types = {name: allowed_types[name] for name in allowed_types if name != "source"}
    if repeated := [name for name in names if folded.count(name) > 1]:
        raise InputError(
            f"{label}: column {', '.join(repeated)} is there more than once (upper and lower case "
            f"count as the same); this table has {', '.join(schema.names)}: keep one"
        )
    if missing:
        raise InputError(
            f"{label}: column {', '.join(missing)} is missing; a ratings table has "
            f"{', '.join(_EXPECTED)}, or pair_id, response and a column for each rule (a column "
            f"source may be left out); this one has {', '.join(schema.names)}"
            f"{_renaming_advice(missing, schema.names)}"
        )
    for name, (expected, allowed) in allowed_types.items():
        column_type = schema.field(name).type
        is_dictionary = types.is_dictionary(column_type)
        value_type = column_type.value_type if is_dictionary else column_type
        if not any(is_allowed(value_type) for is_allowed in allowed):
            raise InputError(f"{label}: column {name} is {column_type}; expected {expected}")


def _renaming_advice(missing: Sequence[str], names: Sequence[str]) -> str:
    """Return the end of an error: which columns look like those that are missing, if any."""
    renamings = {}
    for column in missing:
        possible = [name for name in names if name not in RATINGS_CONTRACT.names]
        similar = [name for name in possible if name.lower() in SIMILAR_NAMES.get(column, ())]
        if nearest := [*similar, *get_close_matches(column, possible, n=1)]:
            renamings[nearest[0]] = column
    if not renamings:
        return ""
    text = ", ".join(f"{name} to {column}" for name, column in renamings.items())
    return f"; rename {text} (pandas: frame.rename(columns={renamings}))"
