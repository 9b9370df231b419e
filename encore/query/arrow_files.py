"""Parquet files as one table that is read when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

ArrowTable: TypeAlias = pa.Table | ds.Dataset


def table_of_files(paths: Sequence[Path], schema: pa.Schema) -> ArrowTable:
    """Files to be read when asked for, by their exact names."""
    if not paths:
        return schema.empty_table()
    names = [str(path.absolute()) for path in paths]
    return ds.dataset(names, schema=schema, format="parquet", filesystem=pafs.LocalFileSystem())
