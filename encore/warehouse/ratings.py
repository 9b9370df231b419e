"""Open ratings: find the files of a path or take a table, and check their columns."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from encore.core.errors import InputError
from encore.data.arrow_tables import arrow_table
from encore.data.pairs import missing_pairs_error
from encore.data.rating_runs import (
    RUN_FILE,
    RatingManifest,
    describe_run,
    list_runs,
    num_computed_pairs,
    read_run,
    run_status,
    sufficiency_note,
)
from encore.data.schemas import RATINGS_CONTRACT
from encore.data.sources.local import is_saved_dataset, read_saved_dataset
from encore.data.study import Study, is_study, open_study
from encore.warehouse.rating_layouts import (
    CSV_SUFFIXES,
    WIDE_KEYS,
    is_published,
    read_csv_table,
    rule_columns,
)

logger = logging.getLogger(__name__)

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
_EXPECTED_OF_RULE = (
    (
        "numbers in [0, 1]: without rule_id and rating every column beside pair_id, source and "
        "response is a rule; drop a column that is none"
    ),
    _NUMBER,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ratings:
    """Ratings to read, of one run and one judge: either ``files`` or ``table``.

    Attributes:
        label: Name of the ratings in messages.
        files: Parquet files with the ratings.
        table: Table in memory with the ratings.
        run: Run key, or its beginning, to select within the rows.
        judge: Name of the judge to select within the rows.
        run_dir: Folder of the run of `encore rate`, all of whose files passed their digests; None
            for ratings from elsewhere.
        has_checked_values: False if the values in that run's files were not checked yet. Then only
            `Warehouse.coded_ratings` reads them, and checks each.
        manifest: Manifest of that run.
        num_shards: Number of shards in the run's plan; 0 without a plan.
        num_missing_shards: Number of shards that are missing, damaged or failed; their ratings
            are not read.
        sufficiency_note: Why the missing shards are not needed, as a sentence; empty if they are.
        study: The study that the run lies in; None for a file, a table, or the copy of a run's
            folder.
        synthetic_files: Names of files that call themselves synthetic.
    """

    label: str
    files: tuple[Path, ...] = ()
    table: pa.Table | None = None
    run: str | None = None
    judge: str | None = None
    run_dir: Path | None = None
    has_checked_values: bool = True
    manifest: RatingManifest | None = None
    num_shards: int = 0
    num_missing_shards: int = 0
    sufficiency_note: str = ""
    study: Study | None = None
    synthetic_files: tuple[str, ...] = ()

    @property
    def synthetic(self) -> tuple[str, ...]:
        """Return the names of the synthetic sources, judges and data sets, as files record them."""
        sources = self.study.synthetic if self.study else ()
        judges = self.manifest.synthetic if self.manifest else ()
        return (*sources, *judges, *self.synthetic_files)

    def with_checked_values(self) -> Ratings:
        """Return the ratings of those shards of the run whose values are valid."""
        assert self.run_dir is not None
        return _ratings_of_run(Path(self.label), self.run_dir, study=self.study)


def open_ratings(
    ratings: Study | str | Path | Ratings | Any,
    *,
    run: str | None = None,
    judge: str | None = None,
    checks_values: bool = True,
) -> Ratings:
    """Open a study, a run's folder, a Parquet or CSV file, a folder of Parquet files, or a table.

    A folder is searched with its subfolders; names that begin with "." or "_" or do not end in
    ``.parquet`` are ignored. Only valid shards of a study are read.

    >>> open_ratings("ratings.csv").table.num_rows
    240

    Args:
        ratings: A study, a path, or data in memory, in any form that `encore.analyze` takes. Of an
            analysis its ratings are returned; opened ratings are returned as they are.
        run: Unique prefix of the key of the run to read. Default: the run with most pairs.
        judge: Name of the judge to read.
        checks_values: True checks that each rating is null or in [0, 1] before anything reads it.
            False is faster, and only `Warehouse.coded_ratings` can then read the ratings: it checks
            them as it reads.

    Raises:
        InputError: There are no ratings, or two runs have most pairs and none is chosen.
    """
    of_analysis = getattr(ratings, "ratings", None)  # a data frame may have a column `ratings`
    if isinstance(of_analysis, Ratings):
        return of_analysis
    if isinstance(ratings, Ratings):
        return ratings
    if not isinstance(ratings, Study | str | Path):
        return Ratings(label="table", table=arrow_table(ratings), run=run, judge=judge)
    path = ratings.path if isinstance(ratings, Study) else Path(ratings)
    if path.is_file() and path.name.lower().endswith(CSV_SUFFIXES):
        return Ratings(label=str(path), table=read_csv_table(path), run=run, judge=judge)
    if is_saved_dataset(path):
        return Ratings(label=str(path), table=read_saved_dataset(path), run=run, judge=judge)
    if not path.exists():
        raise InputError(f"ratings {path}: no such file or folder")
    study = ratings if isinstance(ratings, Study) else _study_at(path)
    run_dirs = _run_dirs(path) if study is None else list_runs(study.ratings_dir)
    if run_dirs is not None:
        run_dir = select_run(path, run_dirs, run=run, judge=judge)
        study = study or _study_at(run_dir.parent.parent)
        return _ratings_of_run(path, run_dir, study=study, checks_values=checks_values)
    # A published data set has its rules and a card beside its ratings.
    folder, card = path, path / "README.md"
    if (path / "data").is_dir() and (path / "rules").is_dir():
        folder = path / "data"
    is_marked = card.is_file() and "\n- synthetic\n" in card.read_text(encoding="utf-8")
    files = tuple(
        file
        for file in ([path] if path.is_file() else sorted(folder.rglob("*.parquet")))
        if file.is_file()
        and not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
    )
    if not files:
        raise InputError(
            f"ratings {path}: no Parquet file there; expected one, or a folder of files that end "
            'in .parquet and do not begin with "." or "_"'
        )
    marks = (f"data set {path.name}",) if is_marked else ()
    return Ratings(label=str(path), files=files, run=run, judge=judge, synthetic_files=marks)


def open_compared_ratings(ratings: str | Path, second: str) -> Ratings:
    """Open the second ratings of a comparison.

    Args:
        ratings: Path of the first ratings, e.g. a study.
        second: A path, or a run key or a judge of ``ratings``.

    Raises:
        InputError: There are no such ratings, or several runs match.
    """
    if Path(second).exists():
        return open_ratings(second)
    study = _study_at(Path(ratings))
    run_dirs = (_run_dirs(Path(ratings)) or ()) if study is None else list_runs(study.ratings_dir)
    is_key = any(run_dir.name.startswith(second) for run_dir in run_dirs)
    run, judge = (second, None) if is_key else (None, second)
    return open_ratings(study or ratings, run=run, judge=judge)


def read_schema(path: Path) -> pa.Schema:
    """Read and check the schema of a Parquet file.

    Raises:
        InputError: The file is not a complete Parquet file, or a column is missing or of a wrong
            type.
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
    """Refuse a schema that lacks a column of the ratings contract or has a wrong type for it.

    Args:
        schema: Schema of a file or a table.
        label: Name of the file or table in messages.

    Raises:
        InputError: A column is wrong; the message names it and what was expected.
    """
    # DuckDB ignores case in names: given `Rating` and `rating`, it might read the wrong column.
    folded = [name.lower() for name in schema.names]
    rules, names, allowed_types = rule_columns(schema), RATINGS_CONTRACT.names, _EXPECTED
    if rules is not None:
        names = schema.names
        allowed_types = {name: _EXPECTED[name] for name in WIDE_KEYS if name in names}
        allowed_types |= {} if is_published(schema) else dict.fromkeys(rules, _EXPECTED_OF_RULE)
    if {"label", "rule_id"} <= {*folded} and "pair_id" not in folded:
        raise InputError(
            f"{label}: a table of labels of single responses, and this needs ratings of pairs "
            f"({', '.join(names)}); read it with `encore labels {label}`"
        )
    if {"chosen", "rejected"} <= {*folded} and "rating" not in folded and rules is None:
        raise InputError(
            f"{label}: preference pairs without ratings; `encore ingest STUDY {label}` and "
            "`encore rate STUDY --judge JUDGE` rate them"
        )
    if unusable := [name for name in names if name not in schema.names or folded.count(name) > 1]:
        raise InputError(
            f"{label}: column {', '.join(unusable)} is missing or there more than once (upper and "
            f"lower case count as the same); a ratings table has {', '.join(names)}, or pair_id, "
            f"source, response and a column for each rule; this one has {', '.join(schema.names)}"
        )
    for name, (expected, allowed) in allowed_types.items():
        column_type = schema.field(name).type
        is_dictionary = types.is_dictionary(column_type)
        value_type = column_type.value_type if is_dictionary else column_type
        if not any(is_allowed(value_type) for is_allowed in allowed):
            raise InputError(f"{label}: column {name} is {column_type}; expected {expected}")


def _study_at(path: Path) -> Study | None:
    """Open the study at a path; None if no study is there."""
    return open_study(path) if is_study(path) else None


def _run_dirs(path: Path) -> Sequence[Path] | None:
    """Return the runs in a study's folder of ratings, or a run's folder; None for other paths."""
    if (path / RUN_FILE).is_file():
        return (path,)
    return list_runs(path) or None


def select_run(
    path: Path, run_dirs: Sequence[Path], *, run: str | None = None, judge: str | None = None
) -> Path:
    """Return the run that matches; without a key, of several the one with most pairs.

    Args:
        path: Study or folder that was given, for messages.
        run_dirs: Folders of its runs.
        run: Beginning of the run key; None matches every key.
        judge: Name of the judge; None matches every judge.

    Raises:
        InputError: No run matches, or several that have equally many rated pairs; the message
            lists them.
    """
    if not run_dirs:
        raise missing_pairs_error(Study(path)) or InputError(
            f"study {path}: no ratings yet; run `encore rate {path} --judge JUDGE` first"
        )
    matches = [run_dir for run_dir in run_dirs if run_dir.name.startswith(run or "")]
    if judge is not None:
        matches = [run_dir for run_dir in matches if read_run(run_dir).judge == judge]
    if len(matches) > 1:
        num_pairs = {
            run_dir: num_computed_pairs(run_dir, read_run(run_dir))
            if any(run_dir.glob("shard-*"))
            else 0
            for run_dir in matches
        }
        least = 1 if run else max(num_pairs.values())  # a key that is given must be unique
        largest = [run_dir for run_dir in matches if num_pairs[run_dir] >= least]
        if len(largest) == 1 and not run:
            _say_which_run(path, largest[0], len(matches))
        matches = largest or matches
    if len(matches) != 1:
        raise InputError(
            f"ratings {path}: {len(matches) or 'none'} of its runs match{' ' if run else ''}"
            f"{run or ''}; choose one with --run KEY or --judge NAME: "
            f"{'; '.join(map(describe_run, run_dirs))}"
        )
    return matches[0]


@cache
def _say_which_run(path: Path, run_dir: Path, num_runs: int) -> None:
    """Say once in a process which of several runs is read, and why."""
    logger.warning(
        "ratings %s: of %d runs, %s is read, which has most pairs; --run KEY or --judge NAME reads "
        "another",
        path,
        num_runs,
        describe_run(run_dir),
    )


def _ratings_of_run(
    path: Path, run_dir: Path, *, study: Study | None, checks_values: bool = True
) -> Ratings:
    """Open the valid shards of a run's folder.

    Raises:
        InputError: No shard is finished.
    """
    status = run_status(run_dir, checks_values=checks_values)
    if not status.paths:
        raise InputError(
            f"ratings {path}: run {run_dir.name} has no finished shard; run `encore rate` again "
            "with the same parameters"
        )
    return Ratings(
        label=str(path),
        files=status.paths,
        run_dir=run_dir,
        has_checked_values=checks_values,
        manifest=status.manifest,
        num_shards=len(status.shards),
        num_missing_shards=len(status.unfinished),
        sufficiency_note=sufficiency_note(status),
        study=study,
    )
