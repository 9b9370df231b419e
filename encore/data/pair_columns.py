"""Columns by which pairs can be sliced: those that ingest kept, and lengths of the texts.

Lengths are in characters and in words. Tokens would need the tokenizer of one model, and say
little more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from encore.core.errors import InputError
from encore.data.pairs import read_pairs
from encore.data.pairs_manifest import kept_columns_file
from encore.data.study import Study

_UNITS = ("characters", "words")
#: Columns that every study has. A difference is the chosen response less the rejected one.
DERIVED_COLUMNS = (
    "turns",
    *(f"{response}_{unit}" for unit in _UNITS for response in ("chosen", "rejected")),
    *(f"difference_{unit}" for unit in _UNITS),
)
_KEYS = ("source", "pair_id")


def refuse_derived_names(names: Sequence[str]) -> None:
    """Refuse to keep a column under the name of one that every study has.

    Raises:
        InputError: A name is taken.
    """
    if reserved := [name for name in names if name in (*DERIVED_COLUMNS, *_KEYS)]:
        raise InputError(
            f"--keep {reserved[0]}: every study has a column of this name; rename it in the records"
        )


def column_of_pairs(study: Study, name: str) -> dict[tuple[str, str], str | float]:
    """Return a column by source and pair_id: numbers if all of it are finite ones, else texts.

    Pairs without a value are left out.

    Args:
        study: The opened study, with pairs.
        name: One of `DERIVED_COLUMNS`, or a column that `encore ingest --keep` kept.

    Raises:
        InputError: No pair has such a column.
    """
    rows = _derived_rows(study, name) if name in DERIVED_COLUMNS else _kept_rows(study, name)
    values: dict[tuple[str, str], Any] = {key: value for key, value in rows if value is not None}
    if not values:
        kept = sorted({column for table in _kept_tables(study).values() for column in table})
        names = ", ".join((*kept, *DERIVED_COLUMNS))
        raise InputError(
            f"--by {name}: no pair of study {study.path} has this column; expected one of {names}, "
            f"or keep it: encore ingest {study.path} SOURCE --keep {name}"
        )
    try:
        numbers: dict[tuple[str, str], Any] = {key: float(text) for key, text in values.items()}
    except ValueError:
        return values
    return numbers if all(map(math.isfinite, numbers.values())) else values


def _kept_tables(study: Study) -> dict[str, list[str]]:
    """Return the names of the kept columns of each label that has some."""
    paths = {label: study.path / kept_columns_file(label) for label in study.labels}
    return {
        label: pq.read_schema(path).names[1:] for label, path in paths.items() if path.is_file()
    }


def _kept_rows(study: Study, name: str) -> Iterator[tuple[tuple[str, str], str | None]]:
    for label, names in _kept_tables(study).items():
        if name in names:
            path = study.path / kept_columns_file(label)
            table = pq.read_table(path, columns=["pair_id", name], partitioning=None)
            for row in table.to_pylist():
                yield (label, row["pair_id"]), row[name]


def _derived_rows(study: Study, name: str) -> Iterator[tuple[tuple[str, str], float]]:
    pairs = read_pairs(study)
    keys = zip(pairs["source"].to_pylist(), pairs["pair_id"].to_pylist(), strict=True)
    yield from zip(keys, _derived_column(pairs, name).tolist(), strict=True)


def _derived_column(pairs: pa.Table, name: str) -> NDArray[np.float64]:
    """Return a column of lengths of a table of pairs, shape [P]."""
    if name == "turns":
        return _numbers(pc.list_value_length(pairs["prompt"]))
    response, unit = name.split("_")
    if response == "difference":
        return _derived_column(pairs, f"chosen_{unit}") - _derived_column(pairs, f"rejected_{unit}")
    texts = pairs[response]
    if unit == "characters":
        return _numbers(pc.utf8_length(texts))
    return _numbers(pc.count_substring_regex(texts, r"\S+"))


def _numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    return np.array(column.to_pylist(), dtype=np.float64)
