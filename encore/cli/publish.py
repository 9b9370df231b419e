"""`encore publish`: one database file for SQL clients, one folder as a data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from encore.cli.output import JsonOption, RunOption, StudyArgument, print_json, say, warn

if TYPE_CHECKING:
    from encore.publish.database import PublishedDatabase
    from encore.publish.dataset import PublishedDataset

_DEFAULT_OUT = Path("study.duckdb")


def publish(
    study: StudyArgument,
    database: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help=f"The database to write. Default: {_DEFAULT_OUT}, unless --dataset is given.",
        ),
    ] = None,
    dataset: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The data set to write, as the hub lays one out."),
    ] = None,
    run: RunOption = None,
    judge: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which judge, when there are several."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace what an earlier call wrote there.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Give a study to others: as one DuckDB file, as a Hugging Face data set, or as both.

    encore publish STUDY --out study.duckdb

    encore publish STUDY --dataset rated-pairs

    The database holds every table of the study, the library's queries as views, weights_at(tau)
    as a macro, and a table of provenance; any DuckDB from 1.4 on opens it, in any SQL client or
    notebook. The data set has one row per rated pair: prompt, both responses and their ratings
    under every rule, with a card. Both hold the texts of the pairs, which stay under their
    owners' licences.

    With several runs --run or --judge says whose ratings are meant. Exit code 3: the run is not
    complete; what is published are its finished shards.
    """
    if database is None and dataset is None:
        database = _DEFAULT_OUT
    written_database = None if database is None else _database(study, database, run, judge, force)
    written_dataset = None if dataset is None else _dataset(study, dataset, run, judge, force)
    if as_json:
        print_json(
            {
                "database": written_database.as_dict() if written_database else None,
                "dataset": written_dataset.as_dict() if written_dataset else None,
            }
        )
    written = written_database or written_dataset
    assert written is not None
    if written.synthetic_parts:
        say(f"synthetic, and marked so: {', '.join(written.synthetic_parts)}")
    if written.num_missing_shards:
        warn(
            f"{written.num_missing_shards} of {written.num_shards} shards are missing, damaged or "
            "failed and not in what was published; `encore status` lists them"
        )
        raise typer.Exit(code=3)


def _database(
    study: Path, path: Path, run: str | None, judge: str | None, force: bool
) -> PublishedDatabase:
    from encore.publish.database import publish_database

    written = publish_database(study, out=path, run=run, judge=judge, force=force)
    say(
        f"{path}: {written.num_bytes / 1e6:.1f} MB, {len(written.tables)} tables "
        f"({written.tables['ratings']:,} ratings), {len(written.views)} views; "
        f"try: duckdb {path} -c 'from entropy_accuracy'"
    )
    return written


def _dataset(
    study: Path, path: Path, run: str | None, judge: str | None, force: bool
) -> PublishedDataset:
    from encore.publish.dataset import publish_dataset

    written = publish_dataset(study, out=path, run=run, judge=judge, force=force)
    say(
        f"{path}: {written.num_rows:,} rated pairs in {written.num_files} Parquet files, "
        f"{written.num_bytes / 1e6:.1f} MB; look at the licences in {path / 'README.md'} before "
        "you pass it on"
    )
    if written.num_unrated_pairs:
        warn(f"{written.num_unrated_pairs:,} pairs are not rated in this run and not in it")
    return written
