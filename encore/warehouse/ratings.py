"""Open ratings: find the files of a path or take a table, and check their columns."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from encore.buckets.study_mirror import study_path
from encore.core.errors import InputError
from encore.core.number_text import counted, first_names
from encore.core.shown_record import ShownRecord
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
from encore.data.sources.file_streams import open_utf8, readable
from encore.data.sources.local import (
    SUFFIXES_TEXT,
    data_suffix,
    is_parquet,
    is_saved_dataset,
    is_table_file,
    read_arrow,
    read_saved_dataset,
)
from encore.data.study import Study, is_study, open_study
from encore.warehouse.rating_layouts import is_published, read_text_table, rule_columns

logger = logging.getLogger(__name__)

#: Ends of the scale of ratings: two numbers, or a text such as ``1,5``.
Scale = tuple[float, float] | str
#: The rating that is read: the level that the judge gave, or its mean over the levels'
#: probabilities.
RatingKind = Literal["level", "expected"]
#: Column of each kind of rating.
RATING_COLUMNS: dict[RatingKind, str] = {"level": "rating", "expected": "expected_rating"}


_EXPECTED_NOTE = (
    "ratings are the means over the labels' probabilities (--rating expected); entropies are those "
    "of the levels, the most likely labels"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Ratings(ShownRecord):
    """Ratings to read, of one run and one judge: either ``files`` or ``table``.

    Attributes:
        label: Name of the ratings in messages.
        files: Parquet files with the ratings.
        table: Table in memory with the ratings.
        run: Run key, or its beginning, to select within the rows.
        judge: Name of the judge to select within the rows.
        run_dir: Folder of the run of `encore rate`, all of whose files passed their digests; None
            for ratings from elsewhere.
        manifest: Manifest of that run.
        num_shards: Number of shards in the run's plan; 0 without a plan.
        num_missing_shards: Number of shards that are missing, damaged or failed; their ratings
            are not read.
        sufficiency_note: Why the missing shards are not needed, as a sentence; empty if they are.
        study: The study that the run lies in; None for a file, a table, or the copy of a run's
            folder.
        synthetic_files: Names of files that call themselves synthetic.
        scale: Ends of the scale of a table's ratings, which are mapped to [0, 1]; None if they are
            in [0, 1].
        rule_columns: The columns of a wide table that were named as rules; empty takes all.
        kind: The rating that is read of each row.
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
    synthetic_files: tuple[str, ...] = ()
    scale: tuple[float, float] | None = None
    rule_columns: tuple[str, ...] = ()
    kind: RatingKind = "level"

    @property
    def by_level(self) -> Ratings:
        """Return the same ratings as the levels that the judge gave."""
        return replace(self, kind="level")

    @property
    def notes(self) -> tuple[str, ...]:
        """Return sentences on how the ratings are read: which kind, a table's rules and scale."""
        if self.run_dir is not None:
            return () if self.kind == "level" else (_EXPECTED_NOTE,)
        schemas = [self.table.schema] if self.table is not None else map(pq.read_schema, self.files)
        columns = [
            name
            for schema in schemas
            if not is_published(schema)
            for name in rule_columns(schema, named=self.rule_columns) or ()
        ]
        sentences = []
        if rules := [*dict.fromkeys(columns)]:
            sentences.append(
                f"{counted(len(rules), 'column')} taken as rules: {', '.join(rules)} "
                "(--rule-columns names others)"
            )
        if self.scale is not None:
            low, high = self.scale
            sentences.append(f"ratings of the scale {low:g} to {high:g} were mapped to 0 to 1")
        if self.kind == "expected":
            sentences.append(_EXPECTED_NOTE)
        return tuple(sentences)

    @property
    def may_have_rules_not_applying(self) -> bool:
        """Return False for a run whose judge could not say that a rule does not apply."""
        return self.manifest is None or bool(self.manifest.settings.get("ask_applies"))

    @property
    def synthetic(self) -> tuple[str, ...]:
        """Return the names of the synthetic sources, judges and data sets, as files record them."""
        sources = self.study.synthetic if self.study else ()
        judges = self.manifest.synthetic if self.manifest else ()
        return (*sources, *judges, *self.synthetic_files)


def open_ratings(
    ratings: Study | str | Path | Ratings | Any,
    *,
    run: str | None = None,
    judge: str | None = None,
    scale: Scale | None = None,
    rule_columns: Sequence[str] | str | None = None,
    rating: RatingKind | None = None,
) -> Ratings:
    """Open a study, a run's folder, a file, a folder of Parquet files, or a table.

    A folder is searched with its subfolders; names that begin with "." or "_" or do not end in
    ``.parquet`` are ignored. Only valid shards of a study are read.

    >>> open_ratings("ratings.csv").table.num_rows
    240

    Args:
        ratings: A study, a path, or data in memory, in any form that `encore.analyze` takes. Of an
            analysis its ratings are returned; opened ratings are returned as they are.
        run: Unique prefix of the key of the run to read. Default: the run with most pairs.
        judge: Name of the judge to read.
        scale: Ends of the scale of a table's ratings, ``(1, 5)`` or ``"1,5"``; they are mapped to
            [0, 1]. None: the ratings are in [0, 1].
        rule_columns: Columns of a wide table that are rules; None takes all that are no keys.
        rating: ``level`` reads the label that the judge gave, ``expected`` the mean over the
            labels' probabilities, which ``--decode expected`` adds. None: ``level``, and the kind
            that was chosen before of opened ratings.

    Raises:
        InputError: There are no ratings, or two runs have most pairs and none is chosen; there are
            no expected ratings.
    """
    opened = _open_ratings(ratings, run=run, judge=judge, scale=scale, rule_columns=rule_columns)
    opened = replace(opened, kind=rating) if rating is not None else opened
    if opened.kind == "expected" and opened.manifest is not None:
        _check_has_expected(opened.label, opened.manifest)
    return opened


def _check_has_expected(label: str, manifest: RatingManifest) -> None:
    """Refuse a run without expected ratings.

    Raises:
        InputError: It was not rated by ``--decode expected``.
    """
    if not manifest.has_expected:
        raise InputError(
            f"ratings {label}: run {manifest.run_key} has no expected ratings, for it was rated by "
            f"--decode {manifest.settings.get('decode', 'text')}; leave out --rating expected, or "
            "rate with --decode expected"
        )


def _open_ratings(
    ratings: Study | str | Path | Ratings | Any,
    *,
    run: str | None,
    judge: str | None,
    scale: Scale | None,
    rule_columns: Sequence[str] | str | None,
) -> Ratings:
    """Open ratings; the arguments are those of `open_ratings`."""
    of_analysis = getattr(ratings, "ratings", None)  # a data frame may have a column `ratings`
    if isinstance(of_analysis, Ratings):
        ratings = of_analysis
    layout: dict[str, Any] = {"scale": scale_ends(scale), "rule_columns": _names(rule_columns)}
    if isinstance(ratings, Ratings):
        changes = {name: value for name, value in layout.items() if value}
        if changes and ratings.run_dir is not None:
            raise _no_table_error(ratings.label)
        return replace(ratings, **changes) if changes else ratings
    if not isinstance(ratings, Study | str | Path):
        table = arrow_table(ratings)
        return Ratings(label="table", table=table, run=run, judge=judge, **layout)
    path = ratings.path if isinstance(ratings, Study) else study_path(ratings)
    if (table := _read_table(path, named=layout["rule_columns"])) is not None:
        return Ratings(label=str(path), table=table, run=run, judge=judge, **layout)
    if not path.exists():
        raise InputError(f"ratings {path}: no such file or folder")
    study = ratings if isinstance(ratings, Study) else _study_at(path)
    run_dirs = _run_dirs(path) if study is None else list_runs(study.ratings_dir)
    if run_dirs is not None:
        if any(layout.values()):
            raise _no_table_error(str(path))
        run_dir = select_run(path, run_dirs, run=run, judge=judge)
        study = study or _study_at(run_dir.parent.parent)
        return _ratings_of_run(path, run_dir, study=study)
    return replace(_ratings_of_files(path), run=run, judge=judge, **layout)


def _ratings_of_files(path: Path) -> Ratings:
    """Open a Parquet file, a folder of them, or a published data set.

    Raises:
        InputError: There is no Parquet file.
    """
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
        names = [entry.name for entry in folder.iterdir() if data_suffix(entry)]
        advice = f"; it has {first_names(sorted(names), limit=3)}: give one file" if names else ""
        raise InputError(
            f"ratings {path}: no Parquet file there; expected one, or a folder of files that end "
            f'in .parquet and do not begin with "." or "_"{advice}'
        )
    marks = (f"data set {path.name}",) if is_marked else ()
    return Ratings(label=str(path), files=files, synthetic_files=marks)


def _read_table(path: Path, *, named: Sequence[str]) -> pa.Table | None:
    """Return a file of ratings that is not Parquet, or a saved data set; None for others."""
    if is_saved_dataset(path):
        return read_saved_dataset(path)
    if not path.is_file() or is_parquet(path):
        return None
    if is_table_file(path):
        return read_arrow(path)
    if data_suffix(path) is None:
        with readable(path), open_utf8(path):  # it names workbooks and archives
            raise InputError(f"{path}: expected a table of ratings that ends in {SUFFIXES_TEXT}")
    return read_text_table(path, named=named)


def scale_ends(scale: Scale | None) -> tuple[float, float] | None:
    """Return the ends of a scale that is given as numbers or as text, e.g. ``1,5``.

    Raises:
        InputError: They are not two finite numbers, the lower one first.
    """
    if scale is None:
        return None
    try:
        low, high = map(float, scale.split(",") if isinstance(scale, str) else scale)
    except (ValueError, TypeError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(
            f"scale {scale!r}: expected its two ends as LOW,HIGH, e.g. 1,5 for ratings from 1 to 5"
        )
    return low, high


def _names(names: Sequence[str] | str | None) -> tuple[str, ...]:
    parts = names.split(",") if isinstance(names, str) else names or ()
    return tuple(filter(None, (name.strip() for name in parts)))


def _no_table_error(label: str) -> InputError:
    return InputError(
        f"{label}: ratings of `encore rate`, which are in [0, 1] and have their rules; --scale and "
        "--rule-columns are for tables from elsewhere, leave them out"
    )


def is_rating_table(path: str | Path) -> bool:
    """Return True for a path of ratings from elsewhere, False for a study or a run's folder."""
    return _study_at(Path(path)) is None and _run_dirs(Path(path)) is None


def open_compared_ratings(
    ratings: str | Path,
    second: str,
    *,
    scale: Scale | None = None,
    rule_columns: str | None = None,
    rating: RatingKind = "level",
) -> Ratings:
    """Open the second ratings of a comparison.

    Args:
        ratings: Path of the first ratings, e.g. a study.
        second: A path, or a run key or a judge of ``ratings``.
        scale: Ends of the scale of the second ratings, if they are a table (`open_ratings`).
        rule_columns: Columns of a wide table that are rules, likewise.
        rating: The kind of rating that is read, as for `open_ratings`.

    Raises:
        InputError: There are no such ratings, or several runs match.
    """
    path, second_path = study_path(ratings), study_path(second)
    if second_path.exists():
        if not is_rating_table(second_path):
            scale = rule_columns = None
        return open_ratings(second_path, scale=scale, rule_columns=rule_columns, rating=rating)
    study = _study_at(path)
    run_dirs = (_run_dirs(path) or ()) if study is None else list_runs(study.ratings_dir)
    is_key = any(run_dir.name.startswith(second) for run_dir in run_dirs)
    run, judge = (second, None) if is_key else (None, second)
    return open_ratings(study or path, run=run, judge=judge, rating=rating)


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
            f"{run or ''}; choose one with --run KEY or --judge-name NAME: "
            f"{'; '.join(map(describe_run, run_dirs))}"
        )
    return matches[0]


@cache
def _say_which_run(path: Path, run_dir: Path, num_runs: int) -> None:
    """Say once in a process which of several runs is read, and why."""
    logger.warning(
        "ratings %s: of %d runs, %s is read, which has most pairs; --run KEY or --judge-name NAME "
        "reads another",
        path,
        num_runs,
        describe_run(run_dir),
    )


def _ratings_of_run(path: Path, run_dir: Path, *, study: Study | None) -> Ratings:
    """Open the valid shards of a run's folder.

    Raises:
        InputError: No shard is finished.
    """
    status = run_status(run_dir)
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
        study=study,
    )
