"""Turn data frames, data sets and lists of records into Arrow tables.

Their libraries are recognised by what an object can do, so none of them has to be installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encore.core.errors import InputError

_NO_COLUMN = (pa.ArrowException, TypeError, ValueError, OverflowError)


def arrow_array(number_N: NDArray[Any], *, nan_is_null: bool = False) -> pa.Array:
    """Return numbers as an Arrow array, which shares their memory.

    `pyarrow.array` and `pyarrow.table` would import pandas, which takes 0.2 s.
    """
    data = pa.py_buffer(np.ascontiguousarray(number_N))
    valid = None
    if nan_is_null:
        valid = pa.py_buffer(np.packbits(~np.isnan(number_N), bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(number_N.dtype), len(number_N), [valid, data])


def arrow_table(data: Any) -> pa.Table:
    """Return the rows of a data frame, a data set or a list of records as an Arrow table.

    Args:
        data: A pandas or Polars data frame (lazy too), an Arrow table or batch, a Hugging Face data
            set, a list of dicts, or a dict of columns. Named levels of a pandas index become
            columns, another index is left out. In pandas columns and in dicts NaN means null.

    Raises:
        InputError: It is nothing of these, or a column mixes types; the message has the column, the
            row (from 1) and the value.
    """
    kind = f"{type(data).__module__.partition('.')[0]}.{type(data).__name__}"
    if hasattr(data, "collect"):  # a lazy data frame of Polars
        data = data.collect()
    elif hasattr(data, "with_format") and hasattr(data, "__getitem__"):  # of Hugging Face
        if isinstance(data, Mapping):
            raise InputError(f"{kind} of splits ({', '.join(data)}): give one of them")
        data = data.with_format("arrow")[:]
    if hasattr(data, "reset_index"):  # a data frame of pandas
        named_levels = [name for name in data.index.names if name is not None]
        data = data.reset_index(level=named_levels) if named_levels else data
        data = {str(name): data[name] for name in data.columns}
    elif hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return pa.table(data)
    if not isinstance(data, Mapping):
        rows = [*data] if isinstance(data, Iterable) and not isinstance(data, str | bytes) else None
        if rows is None or not all(isinstance(row, Mapping) for row in rows):
            raise InputError(
                f"cannot read a {kind} as a table; expected a data frame (pandas, Polars), an "
                "Arrow table, a Hugging Face data set, a list of dicts, or a path"
            )
        names = dict.fromkeys(name for row in rows for name in row)
        data = {name: [row.get(name) for row in rows] for name in names}
    return pa.table({name: _column(name, values) for name, values in data.items()})


def _column(name: str, values: Any) -> pa.Array:
    """Return the values of a column; refuse mixed types."""
    try:
        return pa.array(values, from_pandas=True)
    except _NO_COLUMN as error:
        problem = str(error)
    rows = enumerate(values if isinstance(values, Iterable) else (), start=1)
    present = [(row, value) for row, value in rows if value is not None and value == value]
    for row, value in present:
        try:
            pa.array([present[0][1], value])
        except _NO_COLUMN:
            problem = f"row {row}: {value!r} is of another type than {present[0][1]!r} before"
            break
    raise InputError(f"column {name}, {problem}; give all values of a column one type")
