"""Benchmark tables for SQL: a row for each row of each table, and every pair under each of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from encore.benchmarks.results import PAIR_RESULTS
from encore.benchmarks.stored_tables import RESULTS_FILE, StoredRow, StoredTable, read_table
from encore.query.arrow_files import ArrowTable

_TABLE_KEY = pa.field("table_key", pa.string())
BENCHMARK_ROWS = pa.schema(
    [
        _TABLE_KEY,
        *((name, pa.string()) for name in ("benchmark", "version", "data_digest", "model")),
        ("place", pa.int64()),
        *((name, pa.string()) for name in ("row", "kind", "method", "params")),
        ("tau", pa.float64()),
        ("k", pa.int64()),
        *((name, pa.bool_()) for name in ("uses_labels", "is_mean")),
        ("headline", pa.string()),
        ("num_units", pa.int64()),
        *((name, pa.float64()) for name in ("score", "ci_low", "ci_high")),
        ("reference", pa.string()),
        ("difference", pa.float64()),
        *((name, pa.float64()) for name in ("difference_ci_low", "difference_ci_high")),
        ("mcnemar_p", pa.float64()),
        *((name, pa.bool_()) for name in ("is_synthetic", "is_partial")),
        *((name, pa.string()) for name in ("synthetic", "notes")),
    ]
)
BENCHMARK_PAIRS = pa.schema([_TABLE_KEY, *PAIR_RESULTS])


def benchmark_rows_table(folders: Sequence[Path]) -> pa.Table:
    """Every row of every table.

    Args:
        folders: Of the tables.

    Raises:
        InputError: A file that is no table.
    """
    tables = (read_table(folder, study=folder.name, has_pairs=False) for folder in folders)
    rows = [row for table in tables for row in _rows(table)]
    return pa.Table.from_pylist(rows, schema=BENCHMARK_ROWS)


def benchmark_pairs_table(folders: Sequence[Path]) -> ArrowTable:
    """Every pair under every row of every table; to be read when asked for."""
    paths = [path for path in (folder / RESULTS_FILE for folder in folders) if path.is_file()]
    if not paths:
        return BENCHMARK_PAIRS.empty_table()
    files, file_format = pafs.LocalFileSystem(), ds.ParquetFileFormat()
    fragments = [
        # What holds for a whole file is a column that is not in it.
        file_format.make_fragment(
            str(path.absolute()),
            filesystem=files,
            partition_expression=ds.field(_TABLE_KEY.name) == path.parent.name,
        )
        for path in paths
    ]
    return ds.FileSystemDataset(fragments, BENCHMARK_PAIRS, file_format, filesystem=files)


def _rows(table: StoredTable) -> Iterator[dict[str, Any]]:
    for place, row in enumerate(table.rows):
        yield {
            "table_key": table.folder.name,
            "benchmark": table.benchmark,
            "version": table.version,
            "data_digest": table.digest,
            "model": row.model,
            "place": place,
            "row": row.name,
            "kind": row.kind,
            "method": row.method,
            "params": json.dumps(dict(row.params), ensure_ascii=False, sort_keys=True),
            "tau": row.params.get("tau"),
            "k": row.params.get("k"),
            "uses_labels": row.uses_labels,
            "is_mean": row.is_mean,
            **_figures(table, row),
            "reference": table.reference,
            **_difference(row),
            "is_synthetic": bool(row.synthetic or table.synthetic),
            "is_partial": table.is_partial,
            "synthetic": "; ".join(row.synthetic or table.synthetic) or None,
            "notes": "; ".join(row.notes) or None,
        }


def _figures(table: StoredTable, row: StoredRow) -> dict[str, Any]:
    score, figure = row.figures[table.headline]
    return {
        "headline": table.headline,
        "num_units": figure.num_pairs,
        "score": score,
        "ci_low": figure.ci_low,
        "ci_high": figure.ci_high,
    }


def _difference(row: StoredRow) -> dict[str, Any]:
    """Null for the reference, which is compared with nothing."""
    found = row.difference
    return {
        "difference": None if found is None else found.difference,
        "difference_ci_low": None if found is None else found.ci_low,
        "difference_ci_high": None if found is None else found.ci_high,
        "mcnemar_p": None if found is None else found.mcnemar_p,
    }
