"""Open ratings: the files of a path or a table in memory, and what is known of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from encore.data.study import MARKER, open_study
from encore.errors import InputError
from encore.rating_runs import (
    RUN_FILE,
    RatingManifest,
    describe_run,
    list_runs,
    read_run,
    run_status,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ratings:
    """Ratings to read, of one run and one judge: either ``files`` or ``table``.

    Attributes:
        label: What messages call them.
        files: Parquet files.
        table: A table in memory.
        run: The run key, or the beginning of one, to select within the rows.
        judge: The judge to select within the rows.
        run_dir: The folder of the run of `encore rate`; None for ratings from elsewhere.
        manifest: What that run says of itself.
        num_rows: Rows of each file of a run; empty where they are still to be counted.
        num_shards: Shards of the run's plan; 0 where there is no plan.
        num_missing_shards: Those that are missing, damaged or failed, and therefore not in it.
    """

    label: str
    files: tuple[Path, ...] = ()
    table: pa.Table | None = None
    run: str | None = None
    judge: str | None = None
    run_dir: Path | None = None
    manifest: RatingManifest | None = None
    num_rows: tuple[int, ...] = ()
    num_shards: int = 0
    num_missing_shards: int = 0

    @property
    def is_validated(self) -> bool:
        """Whether every file passed its digest: the files are shards of a run."""
        return self.run_dir is not None


def open_ratings(
    ratings: str | Path | Ratings | Any, *, run: str | None = None, judge: str | None = None
) -> Ratings:
    """Open a study, a run's folder, a Parquet file, a folder of them, or a table.

    A folder is searched with its subfolders; names that begin with "." or "_" or do not end in
    ``.parquet`` are passed over. Of a study only shards that validate are read.

    Args:
        ratings: A path, or anything that pyarrow takes as a table (pyarrow, pandas, Polars), or
            ratings that are open already. A missing value of a pandas column counts as null.
        run: A unique prefix of the run key to read, where there are several.
        judge: The judge to read, where there are several.

    Raises:
        InputError: Nothing there, or several runs and none chosen.
    """
    if isinstance(ratings, Ratings):
        return ratings
    if not isinstance(ratings, str | Path):
        return Ratings(label="table", table=_as_table(ratings), run=run, judge=judge)
    path = Path(ratings)
    if not path.exists():
        raise InputError(f"ratings {path}: no such file or directory")
    run_dirs = _run_dirs(path)
    if run_dirs is not None:
        return _of_run(path, _chosen_run(path, run_dirs, run=run, judge=judge))
    files = (path,) if path.is_file() else _files_in(path)
    return Ratings(label=str(path), files=files, run=run, judge=judge)


def open_other_ratings(ratings: str | Path, other: str) -> Ratings:
    """Open the ratings that some ratings are compared with.

    Args:
        ratings: A study or other path.
        other: A path; or a run key or a judge of ``ratings``.

    Raises:
        InputError: As `open_ratings`.
    """
    if Path(other).exists():
        return open_ratings(other)
    runs = _run_dirs(Path(ratings)) or ()
    if any(run_dir.name.startswith(other) for run_dir in runs):
        return open_ratings(ratings, run=other)
    return open_ratings(ratings, judge=other)


def _as_table(ratings: Any) -> pa.Table:
    if isinstance(ratings, pa.Table):
        return ratings
    try:
        return pa.table(ratings)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"ratings: cannot read a {type(ratings).__name__} as a table ({error}); give a path, "
            "a pyarrow Table or a pandas DataFrame"
        ) from error


def _run_dirs(path: Path) -> Sequence[Path] | None:
    """The runs that a study, its ratings folder or one run's folder holds; None for other paths."""
    if not path.is_dir():
        return None
    if (path / MARKER).exists():
        return list_runs(open_study(path).ratings_dir)
    if (path / RUN_FILE).is_file():
        return (path,)
    return list_runs(path) or None


def _chosen_run(
    path: Path, run_dirs: Sequence[Path], *, run: str | None, judge: str | None
) -> Path:
    if not run_dirs:
        raise InputError(f"study {path}: no ratings yet; run `encore rate {path}` first")
    named = [run_dir for run_dir in run_dirs if run_dir.name.startswith(run or "")]
    chosen = [run_dir for run_dir in named if judge is None or judge == read_run(run_dir).judge]
    if len(chosen) != 1:
        raise InputError(
            f"ratings {path}: {len(chosen) or 'none'} of its runs match; choose one with --run KEY "
            f"or --judge NAME: {'; '.join(map(describe_run, run_dirs))}"
        )
    return chosen[0]


def _of_run(path: Path, run_dir: Path) -> Ratings:
    status = run_status(run_dir)
    files = status.paths
    if not files:
        raise InputError(
            f"ratings {path}: run {run_dir.name} has no finished shard; run `encore rate` again "
            "with the same parameters"
        )
    done = [shard for shard in status.shards if shard.state == "done"]
    return Ratings(
        label=str(path),
        files=files,
        run_dir=run_dir,
        manifest=status.manifest,
        num_rows=tuple(shard.num_ratings + shard.num_nulls for shard in done),
        num_shards=len(status.shards),
        num_missing_shards=len(status.shards) - len(files),
    )


def _files_in(folder: Path) -> tuple[Path, ...]:
    files = tuple(
        path
        for path in sorted(folder.rglob("*.parquet"))
        if path.is_file()
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    )
    if not files:
        raise InputError(
            f"ratings {folder}: no Parquet file in it; expected files that end in .parquet and do "
            'not begin with "." or "_"'
        )
    return files
