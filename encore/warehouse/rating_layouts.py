"""Layouts of ratings: a row a rating, or a row a response or a pair with a column for each rule.

All of them are read as the long layout, the columns of `encore.data.schemas.RATINGS_CONTRACT`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, types

from encore.core.errors import InputError
from encore.data.arrow_tables import arrow_table
from encore.data.rating_runs import DOES_NOT_APPLY
from encore.data.records import RESPONSES
from encore.data.sources.csv_records import csv_separator
from encore.data.sources.file_streams import open_utf8, readable
from encore.data.sources.local import is_csv
from encore.data.table_files import read_table

#: Columns of a wide table that are no rules. `source` may be missing, as in a long one.
WIDE_KEYS = ("pair_id", "source", "response")
#: Optional columns that name the prompt of a pair: pairs of one prompt belong together.
PROMPT_COLUMNS = ("prompt_id", "prompt")
#: Optional column of the long layout with the reason of a null rating.
REASON_COLUMN = "null_reason"
#: Source of the pairs of a table without a column `source`.
DEFAULT_SOURCE = "table"
#: Names that a pandas index has in files: no rules.
_INDEX_NAMES = ("", "index", "Unnamed: 0", "__index_level_0__")
#: Columns of a published data set with the ratings of a response: a field for each rule.
STRUCT_COLUMNS = tuple(f"{response}_ratings" for response in RESPONSES)
#: Columns of a published data set with the rules that do not apply to a response. They are missing
#: if the judge was not asked.
NOT_APPLICABLE_COLUMNS = tuple(f"{response}_not_applicable" for response in RESPONSES)

#: End of an error about a column of a wide table.
_OTHER_COLUMNS = "; name the columns that are rules with --rule-columns, if this one is none"
#: Names that other tools give to the columns of the long layout.
SIMILAR_NAMES: Mapping[str, tuple[str, ...]] = {
    "pair_id": ("pair", "pairid", "id", "example_id", "item_id"),
    "source": ("dataset", "data_set", "subset"),
    "response": ("side", "completion", "answer", "which"),
    "rule_id": ("rule", "rule_name", "criterion", "principle", "dimension", "attribute"),
    "rating": ("score", "value", "grade", "rate", "label"),
}


def rule_columns(schema: pa.Schema, *, named: Sequence[str] = ()) -> tuple[str, ...] | None:
    """Return the rules of a wide table, or of a published data set; None for another layout.

    A wide table has the columns ``pair_id`` and ``response`` and neither ``rule_id`` nor
    ``rating``, nor names that are similar to both. A published data set has the ratings of both
    responses in two columns, as structs.

    Args:
        schema: Schema of the table.
        named: The columns that are rules; empty takes all that are no keys.
    """
    names = {name.lower() for name in schema.names}
    if is_published(schema):
        return tuple(schema.field(STRUCT_COLUMNS[0]).type.names)
    if named:
        return tuple(named)
    is_long = all(names & set(SIMILAR_NAMES[column]) for column in ("rule_id", "rating"))
    if not {"pair_id", "response"} <= names or names & {"rule_id", "rating"} or is_long:
        return None
    keys = (*WIDE_KEYS, *PROMPT_COLUMNS, *_INDEX_NAMES)
    return tuple(name for name in schema.names if name not in keys) or None


def is_published(schema: pa.Schema) -> bool:
    """Return True for the columns that `encore publish --dataset` writes."""
    return {"pair_id", "source", *STRUCT_COLUMNS} <= {*schema.names} and all(
        types.is_struct(schema.field(name).type) for name in STRUCT_COLUMNS
    )


def names_rules_not_applying(schemas: Sequence[pa.Schema]) -> bool:
    """Return True for published data sets whose judge was asked if a rule applies."""
    names = {*NOT_APPLICABLE_COLUMNS}
    return all(is_published(schema) and names <= {*schema.names} for schema in schemas)


def long_relation(
    schemas: Sequence[pa.Schema], relation: str, *, named: Sequence[str] = ()
) -> tuple[str, tuple[str, ...]]:
    """Return SQL for the long layout of some rows, and the rules if it has a column for each.

    Args:
        schemas: Schemas of the table or of its files.
        relation: SQL of the table or the files, to stand after ``from``.
        named: The columns that are rules, see `rule_columns`.
    """
    columns = [rule_columns(schema, named=named) for schema in schemas]
    rules = tuple(dict.fromkeys(rule for names in columns for rule in names or ()))
    has_source = any("source" in schema.names for schema in schemas)
    if None in columns and has_source:
        return relation, ()
    if None in columns:
        return f"(select *, '{DEFAULT_SOURCE}' as source from {relation})", ()  # noqa: S608 - constant
    has_reasons = names_rules_not_applying(schemas)
    if is_published(schemas[0]):
        parts = [
            (f"'{response}'", f"{response}_ratings.", "source", f", {not_applicable}" * has_reasons)
            for response, not_applicable in zip(RESPONSES, NOT_APPLICABLE_COLUMNS, strict=True)
        ]
    else:
        parts = [("response", "", "source" if has_source else f"'{DEFAULT_SOURCE}'", "")]
    rows = " union all ".join(
        f"select pair_id, {source} as source, {response} as response, "  # noqa: S608 - quoted names
        + ", ".join(f"{prefix}{_quoted(rule)}::double as {_quoted(rule)}" for rule in rules)
        + f"{not_applicable} from {relation}"
        for response, prefix, source, not_applicable in parts
    )
    selected = "*"
    if has_reasons:  # the union has the name of the first of both columns
        reason = (
            f"if(list_contains({NOT_APPLICABLE_COLUMNS[0]}, rule_id), '{DOES_NOT_APPLY}', null)"
        )
        selected = f"* exclude ({NOT_APPLICABLE_COLUMNS[0]}), {reason} as {REASON_COLUMN}"
    names = ", ".join(map(_quoted, rules))
    unpivoted = f"({rows}) unpivot include nulls (rating for rule_id in ({names}))"
    return f"(select {selected} from {unpivoted})", rules  # noqa: S608 - quoted names


def read_text_table(path: Path, *, named: Sequence[str] = ()) -> pa.Table:
    """Return a CSV, TSV or JSON file of ratings, in any layout, as an Arrow table.

    Args:
        path: The file, compressed or not, in any Unicode.
        named: The columns that are rules, see `rule_columns`.

    Raises:
        InputError: It cannot be read as what its name says; with position and value.
    """
    if is_csv(path):
        return _read_csv_table(path, named=named)
    return arrow_table([record for _, record in read_table(path)])


def _read_csv_table(path: Path, *, named: Sequence[str]) -> pa.Table:
    """Return a CSV file of ratings as an Arrow table.

    A byte-order mark, commas, semicolons or tabs, a decimal comma, and columns in any order are
    accepted. An empty cell, ``NA`` or ``NaN`` means: no valid rating.

    Raises:
        InputError: It is no CSV in Unicode, or a rating is no number; with row (from 1, the header)
            and value.
    """
    separator = csv_separator(path)
    problem, names, schema = "", [""], pa.schema([])
    for decimal_point in ".," if separator != "," else ".":
        options = {
            "parse_options": csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            "read_options": csv.ReadOptions(use_threads=False),  # errors have the row's number
        }
        try:
            with open_utf8(path) as stream, csv.open_csv(stream, **options) as reader:
                schema, names = reader.schema, reader.schema.names
            rules = rule_columns(schema, named=named) or ("rating",)
            column_types = {n: pa.float64() if n in rules else pa.string() for n in names}
            conversion = csv.ConvertOptions(column_types=column_types, decimal_point=decimal_point)
            with readable(path), open_utf8(path) as stream:
                return csv.read_csv(stream, **options, convert_options=conversion)
        except (pa.ArrowException, OSError) as error:
            problem = problem or str(error)
    for index, name in enumerate(names):
        problem = problem.replace(f"column #{index}:", f"column {name},")
    advice = "" if rule_columns(schema, named=named) is None else _OTHER_COLUMNS
    raise InputError(f"{path}: {problem}; expected a CSV file in UTF-8, ratings as numbers{advice}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
