"""Rating runs that hold nothing: begun, and ended before a reply came."""

from __future__ import annotations

import shutil
from pathlib import Path

from encore.core.bucket_addresses import bucket_addresses
from encore.core.errors import InputError
from encore.core.file_lock import file_lock
from encore.data.rating_runs import list_runs
from encore.data.study import Study


def remove_empty_runs(study: Study) -> tuple[str, ...]:
    """Remove the runs without a finished shard or a kept reply, and return their keys.

    A run that a process works on stays.

    Raises:
        InputError: The study is in a bucket, where other machines may work on its runs.
    """
    if str(study.path) in bucket_addresses:
        raise InputError(f"{study.path}: runs of a study in a bucket are removed there, by hand")
    empty = [run_dir for run_dir in list_runs(study.ratings_dir) if _is_empty(run_dir)]
    for run_dir in empty:
        shutil.rmtree(run_dir)
    return tuple(run_dir.name for run_dir in empty)


def _is_empty(run_dir: Path) -> bool:
    """Return True if a run holds no shard and no reply, and nobody works on it."""
    if any(run_dir.glob("shard-*")) or any(run_dir.glob("replies-*")):
        return False
    for path in run_dir.glob("locks/*.lock"):
        with file_lock(path, timeout_seconds=0) as state:
            if state != "held":
                return False
    return True
