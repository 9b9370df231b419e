"""Shards of rating runs that tests find, or write without a judge."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from encore.data.rating_runs import RatingManifest
from encore.runs import run_files as runs
from encore.runs.run_files import Shard, ShardState, ShardTable


def shard_path(run_dir: Path, index: int) -> Path:
    """Return the oldest file of a shard, valid or not: the one that readers try first."""
    return min(
        run_dir.glob(f"shard-{index:05d}*.parquet"), key=lambda path: path.stat().st_mtime_ns
    )


def write_shard(
    run_dir: Path, manifest: RatingManifest, shard: Shard, table: pa.Table
) -> ShardState:
    """Write these ratings as one shard."""
    run_dir.mkdir(parents=True, exist_ok=True)
    num_nulls = table["rating"].null_count
    footer = {"num_ratings": table.num_rows - num_nulls, "num_nulls": num_nulls}
    return runs.write_shard(run_dir, manifest, shard, ShardTable(table=table, footer=footer))
