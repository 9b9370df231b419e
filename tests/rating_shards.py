"""Rating runs put on disk by tests, without a judge."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from encore import runs
from encore.rating_runs import RatingManifest
from encore.runs import Shard, ShardState, Slice


def write_run(run_dir: Path, manifest: RatingManifest) -> None:
    """A run's folder with its manifest."""
    runs.claim_folder(run_dir, manifest)


def write_shard(
    run_dir: Path, manifest: RatingManifest, shard: Shard, table: pa.Table
) -> ShardState:
    """A shard with these ratings."""
    run_dir.mkdir(parents=True, exist_ok=True)
    num_nulls = table["rating"].null_count
    footer = {"num_ratings": table.num_rows - num_nulls, "num_nulls": num_nulls}
    return runs.write_shard(run_dir, manifest, shard, Slice(table=table, footer=footer))
