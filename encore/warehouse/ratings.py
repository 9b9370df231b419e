"""Open ratings: the files of a path or a table in memory, their columns, and what is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from encore.core.errors import InputError
from encore.data.pairs import missing_pairs_error
from encore.data.rating_runs import (
    RUN_FILE,
    RatingManifest,
    describe_run,
    list_runs,
    read_run,
    run_status,
    sufficiency_note,
)
from encore.data.schemas import RATINGS_CONTRACT
from encore.data.study import Study, is_study, open_study

_TEXT = (types.is_string, types.is_large_string, types.is_string_view)
_ID = (*_TEXT, types.is_integer)
#: A column of nulls only has no better type.
_NUMBER = (types.is_floating, types.is_integer, types.is_decimal, types.is_null)
_EXPECTED = {
    "pair_id": ("text", _ID),
    "source": ("text", _ID),
    "response": ('text, "chosen" or "rejected"', _TEXT),
    "rule_id": ("text", _ID),
    "rating": ("a number in [0, 1]", _NUMBER),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ratings:
    """Ratings to read, of one run and one judge: either ``files`` or ``table``.

    Attributes:
        label: What messages call them.
        files: Parquet files.
        table: A table in memory.
        run: The run key, or the beginning of one, to select within the rows.
        judge: The judge to select within the rows.
        run_dir: The folder of the run of `encore rate`, whose shards all passed their digests;
            None for ratings from elsewhere.
        manifest: What that run says of itself.
        num_shards: Shards of the run's plan; 0 where there is no plan.
        num_missing_shards: Those that are missing, damaged or failed, and therefore not in it.
        sufficiency_note: Why the missing shards are not needed, as a sentence; empty if they are.
        study: The study that the run lies in; None for a file, a table, or the copy of a run's
            folder.
    """

    label: str
    files: tuple[Path, ...] = ()
    table: pa.Table | None = None
    run: str | None = None
    judge: str | None = None
    run_dir: Path | None = None
    manifest: RatingManifest | None = None
    num_shards: int = 0
    num_missing_shards: int = 0
    sufficiency_note: str = ""
    study: Study | None = None

    @property
    def synthetic(self) -> tuple[str, ...]:
        """Names of the synthetic sources and judges, as manifests record them; empty if none."""
        sources = self.study.synthetic if self.study else ()
        return (*sources, *(self.manifest.synthetic if self.manifest else ()))


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
        try:
            table = ratings if isinstance(ratings, pa.Table) else pa.table(ratings)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"ratings: cannot read a {type(ratings).__name__} as a table ({error}); give a "
                "path, a pyarrow Table or a pandas DataFrame"
            ) from error
        return Ratings(label="table", table=table, run=run, judge=judge)
    path = Path(ratings)
    run_dirs = _run_dirs(path)
    if run_dirs is not None:
        return _of_run(path, select_run(path, run_dirs, run=run, judge=judge))
    files = tuple(
        file
        for file in ([path] if path.is_file() else sorted(path.rglob("*.parquet")))
        if file.is_file()
        and not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
    )
    if not files:
        raise InputError(
            f"ratings {path}: no Parquet file there; expected one, or a folder of files that end "
            'in .parquet and do not begin with "." or "_"'
        )
    return Ratings(label=str(path), files=files, run=run, judge=judge)


def open_compared_ratings(ratings: str | Path, other: str) -> Ratings:
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
    is_key = any(run_dir.name.startswith(other) for run_dir in runs)
    return open_ratings(ratings, **{"run" if is_key else "judge": other})


def read_schema(path: Path) -> pa.Schema:
    """The checked schema of a Parquet file.

    Raises:
        InputError: Not a whole Parquet file, or a column is missing or of a wrong type.
    """
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{path}: cannot be read as a Parquet file of ratings ({error}); copy or write it again"
        ) from error
    check_schema(schema, label=str(path))
    return schema


def check_schema(schema: pa.Schema, *, label: str) -> None:
    """Refuse a schema without the contract's columns, or with types that cannot mean them.

    Raises:
        InputError: The column and what was expected.
    """
    # DuckDB does not tell names apart by case: of `Rating` and `rating` it might read the other.
    folded = [name.lower() for name in schema.names]
    names = RATINGS_CONTRACT.names
    if {"label", "rule_id"} <= {*folded} and "pair_id" not in folded:
        raise InputError(
            f"{label}: a table of labels of single responses, and this needs ratings of pairs "
            f"({', '.join(names)}); read it with `encore labels {label}`"
        )
    if wrong := [name for name in names if name not in schema.names or folded.count(name) > 1]:
        raise InputError(
            f"{label}: column {', '.join(wrong)} is missing or there more than once (upper and "
            f"lower case count as the same); a ratings table has {', '.join(names)}, this one has "
            f"{', '.join(schema.names)}"
        )
    for name, (expected, allowed) in _EXPECTED.items():
        found = schema.field(name).type
        value_type = found.value_type if types.is_dictionary(found) else found
        if not any(is_fit(value_type) for is_fit in allowed):
            raise InputError(f"{label}: column {name} is {found}; expected {expected}")


def _run_dirs(path: Path) -> Sequence[Path] | None:
    """The runs that a study, its ratings folder or one run's folder holds; None for other paths."""
    if not path.is_dir():
        return None
    if is_study(path):
        return list_runs(open_study(path).ratings_dir)
    if (path / RUN_FILE).is_file():
        return (path,)
    return list_runs(path) or None


def select_run(
    path: Path, run_dirs: Sequence[Path], *, run: str | None = None, judge: str | None = None
) -> Path:
    """The only run of ``path``, or the one of a key that begins with ``run``, of a judge or both.

    Raises:
        InputError: No run, several, or none that matches; the message lists them.
    """
    if not run_dirs:
        raise missing_pairs_error(Study(path)) or InputError(
            f"study {path}: no ratings yet; run `encore rate {path}` first"
        )
    named = [run_dir for run_dir in run_dirs if run_dir.name.startswith(run or "")]
    chosen = [run_dir for run_dir in named if judge is None or judge == read_run(run_dir).judge]
    if len(chosen) != 1:
        raise InputError(
            f"ratings {path}: {len(chosen) or 'none'} of its runs match{f' {run}' if run else ''}; "
            "choose one with --run KEY or --judge NAME: "
            f"{'; '.join(map(describe_run, run_dirs))}"
        )
    return chosen[0]


def _of_run(path: Path, run_dir: Path) -> Ratings:
    status, study_dir = run_status(run_dir), run_dir.parent.parent
    if not status.paths:
        raise InputError(
            f"ratings {path}: run {run_dir.name} has no finished shard; run `encore rate` again "
            "with the same parameters"
        )
    return Ratings(
        label=str(path),
        files=status.paths,
        run_dir=run_dir,
        manifest=status.manifest,
        num_shards=len(status.shards),
        num_missing_shards=len(status.unfinished),
        sufficiency_note=sufficiency_note(status),
        study=open_study(study_dir) if is_study(study_dir) else None,
    )
