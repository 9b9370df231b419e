"""Publish a study as a DuckDB file or as a data set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from encore.core.errors import InputError
from encore.data.study import Study, as_study
from encore.tables.publication import Publication
from encore.tables.publish_database import is_database, write_database
from encore.tables.study_tables import StudyTables, study_tables


def publish(
    study: Study | str | Path,
    out: str | Path,
    *,
    is_dataset: bool | None = None,
    run: str | None = None,
    judge: str | None = None,
    force: bool = False,
) -> Publication:
    """Write a study for other people, as a DuckDB file or as a Hugging Face data set.

    >>> publish("study", "published").num_rows
    40
    >>> publish("study", "study.duckdb").tables["ratings"]
    240

    After an error there is no file and no folder. A database has the study's tables, the queries of
    `sql/` as views, and provenance: table ``ratings`` and the queries contain one run, table
    ``other_ratings`` the other runs, view ``all_ratings`` all of them. A data set has the rated
    pairs of one run, sorted by source and pair_id, for ``datasets.load_dataset``: ``pair_id,
    source, prompt`` (messages), ``chosen, rejected`` (text), ``chosen_ratings, rejected_ratings``
    (one field per rule; null if there is no valid rating).

    Args:
        study: The study, or its directory.
        out: The file, or the folder of a data set.
        is_dataset: True for a data set, False for a database. None: a database if the name ends in
            ``.duckdb``.
        run: Unique prefix of the run's key. Default: the run with most pairs.
        judge: Judge of the run, instead of ``run``.
        force: True replaces what an earlier call wrote.

    Raises:
        InputError: There is no study or no ratings, no run is chosen, rated pairs are no longer in
            the study, or ``out`` may not be replaced.
        EncoreError: A `run.json` is damaged.
    """
    out = Path(out)
    write: Callable[[Path, StudyTables], Publication]
    if is_dataset is None:
        is_dataset = out.suffix != ".duckdb"
    if is_dataset:
        from encore.tables.publish_dataset import is_data_set, write_data_set

        is_occupied = out.is_file() or (out.is_dir() and any(out.iterdir()))
        option, is_ours, write = "--dataset", is_data_set, write_data_set
    else:
        if not out.parent.is_dir():
            raise InputError(f"--out {out}: there is no folder {out.parent}; make it first")
        is_occupied = out.exists()
        option, is_ours, write = "--out", is_database, write_database
    if is_occupied and not is_ours(out):
        raise InputError(f"{option} {out}: this path exists and has other content; name a new path")
    if is_occupied and not force:
        raise InputError(f"{option} {out}: exists already; name a new path, or give --force")
    tables = study_tables(as_study(study), run=run, judge=judge)
    tables.require_run()  # before anything is written
    return write(out, tables)
