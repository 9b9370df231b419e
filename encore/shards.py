"""Names that moved to `encore.runs` and `encore.rating_runs`."""

from __future__ import annotations

from pathlib import Path

from encore.rating_runs import (
    RUN_FILE,
    choose_run,
    describe_run,
    list_runs,
    read_run,
    run_status,
    status,
)
from encore.rating_runs import RatingManifest as RunManifest
from encore.rating_runs import RatingStatus as RunStatus
from encore.runs import Shard, ShardState, plan_shards, run_key_of, shard_path

__all__ = [
    "RUN_FILE",
    "RunManifest",
    "RunStatus",
    "Shard",
    "ShardState",
    "choose_run",
    "describe_run",
    "list_runs",
    "plan_shards",
    "read_run",
    "run_key_of",
    "run_status",
    "shard_path",
    "status",
    "validated_shards",
]


def validated_shards(status: RunStatus) -> tuple[Path, ...]:
    """The files of the shards that are done."""
    return status.paths
