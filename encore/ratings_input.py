"""Find the ratings to analyse: files of a path or a table in memory, and what is known of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from encore.data.study import MARKER, open_study
from encore.errors import InputError
from encore.ratings_schema import PROVENANCE_COLUMNS, check_schema, read_file_schema
from encore.shards import (
    RUN_FILE,
    describe_run,
    list_runs,
    read_run,
    run_status,
    validated_shards,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingsInput:
    """Ratings to read: either ``files`` or ``table``.

    ``run`` and ``judge`` are still to be selected within the rows. ``rule_order`` is None where no
    rule set is known. ``is_validated`` says that every file passed its digest, so that its rows
    need no check; then ``num_rows`` holds those of each file.
    """

    label: str
    files: tuple[Path, ...] = ()
    table: pa.Table | None = None
    run: str | None = None
    judge: str | None = None
    rule_order: tuple[str, ...] | None = None
    is_validated: bool = False
    num_rows: tuple[int, ...] = ()
    num_shards: int = 0
    num_missing_shards: int = 0


def ratings_input(
    ratings: str | Path | Any, *, run: str | None = None, judge: str | None = None
) -> RatingsInput:
    """What to read for a study, a run's folder, a Parquet file, a folder of them, or a table.

    A folder is searched with its subfolders; names that begin with "." or "_" or do not end in
    ``.parquet`` are passed over. Of a study only shards that validate are read.

    Args:
        ratings: A path, or anything that pyarrow takes as a table (pyarrow, pandas, Polars).
            A missing value of a pandas column counts as null.
        run: A unique prefix of the run key to read, where there are several.
        judge: The judge to read, where there are several.

    Raises:
        InputError: Nothing there, or several runs and none chosen.
    """
    if not isinstance(ratings, str | Path):
        return RatingsInput(label="table", table=_as_table(ratings), run=run, judge=judge)
    path = Path(ratings)
    if not path.exists():
        raise InputError(f"ratings {path}: no such file or directory")
    run_dirs = _run_dirs(path)
    if run_dirs is not None:
        return _of_run(path, _chosen_run(path, run_dirs, run=run, judge=judge))
    files = (path,) if path.is_file() else _files_in(path)
    return RatingsInput(label=str(path), files=files, run=run, judge=judge)


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingsOfJudge:
    """One judge's ratings; ``judge`` is its name, with the run key where it has several runs."""

    judge: str
    ratings: RatingsInput


def ratings_by_judge(ratings: str | Path | Any) -> tuple[RatingsOfJudge, ...]:
    """What to read for each judge, and for each of its runs where there are several.

    Args:
        ratings: As for `ratings_input`.

    Raises:
        InputError: Nothing there, or rows that do not say who rated.
    """
    run_dirs = _run_dirs(Path(ratings)) if isinstance(ratings, str | Path) else None
    if run_dirs:
        path = Path(ratings)
        found: list[tuple[str, str | None]] = [
            (read_run(run_dir).judge, run_dir.name) for run_dir in run_dirs
        ]
        inputs = [_of_run(path, run_dir) for run_dir in run_dirs]
    else:
        base = ratings_input(ratings)
        found = _judges_in_rows(base)
        inputs = [dataclasses.replace(base, judge=judge, run=run) for judge, run in found]
    num_runs = Counter(judge for judge, _ in found)
    return tuple(
        RatingsOfJudge(
            judge=judge if num_runs[judge] == 1 else f"{judge} ({run or 'no run key'})", ratings=one
        )
        for (judge, run), one in zip(found, inputs, strict=True)
    )


def _judges_in_rows(base: RatingsInput) -> list[tuple[str, str | None]]:
    """Every judge and run key that rows name, sorted."""
    found: set[tuple[str, str | None]] = set()
    for label, table in _provenance_tables(base):
        distinct = table.group_by(table.column_names).aggregate([])
        for row in distinct.to_pylist():
            if row.get("judge") is None:
                raise InputError(
                    f"{label}: rows without a judge; --by-judge takes a column judge that says who "
                    "gave each rating"
                )
            found.add((row["judge"], row.get("run_key")))
    if not found:
        raise InputError(f"{base.label}: no ratings in it (0 rows)")
    return sorted(found, key=lambda one: (one[0], one[1] or ""))


def _provenance_tables(base: RatingsInput) -> Iterator[tuple[str, pa.Table]]:
    """Of each file or of the table: what to call it, and its columns of provenance as text."""
    if base.table is not None:
        check_schema(base.table.schema, label=base.label)
        yield base.label, _provenance(base.table)
    for path in base.files:
        names = [name for name in PROVENANCE_COLUMNS if name in read_file_schema(path).schema.names]
        yield str(path), _provenance(pq.ParquetFile(path).read(columns=names))


def _provenance(table: pa.Table) -> pa.Table:
    names = [name for name in PROVENANCE_COLUMNS if name in table.column_names]
    if "judge" not in names:
        return pa.table({"judge": pa.nulls(min(table.num_rows, 1), pa.string())})
    return pa.table({name: table[name].cast(pa.string()) for name in names})


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
        listing = "; ".join(describe_run(run_dir) for run_dir in run_dirs)
        found = f"{len(chosen) or 'none'} of its runs match"
        raise InputError(
            f"ratings {path}: {found}; choose one with --run KEY or --judge NAME: {listing}"
        )
    return chosen[0]


def _of_run(path: Path, run_dir: Path) -> RatingsInput:
    status = run_status(run_dir)
    files = validated_shards(status)
    if not files:
        raise InputError(
            f"ratings {path}: run {run_dir.name} has no finished shard; run `encore rate` again "
            "with the same parameters"
        )
    return RatingsInput(
        label=str(path),
        files=files,
        rule_order=status.manifest.rule_ids,
        is_validated=True,
        num_rows=tuple(
            shard.num_ratings + shard.num_nulls for shard in status.shards if shard.state == "done"
        ),
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
