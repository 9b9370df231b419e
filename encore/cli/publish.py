"""`encore publish`: one database file for SQL clients, one folder as a data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from encore.cli.output import counted, exit_if_incomplete
from encore.config import PublishConfig
from encore.errors import InputError
from encore.options import JsonOption, command
from encore.terminal import print_json, say, warn

if TYPE_CHECKING:
    from encore.publish.database import PublishedDatabase
    from encore.publish.dataset import PublishedDataset


@command
def publish(config: PublishConfig, *, json: JsonOption = False) -> None:
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
    database, dataset = None, None
    if config.out is not None or config.dataset is None:
        database = _database(config, config.out or Path("study.duckdb"))
    if config.dataset is not None:
        dataset = _dataset(config, config.dataset)
    if json:
        written = {"database": database, "dataset": dataset}
        print_json({name: one.as_dict() if one else None for name, one in written.items()})
    one = database or dataset
    assert one is not None
    if one.synthetic_parts:
        say(f"synthetic, and marked so: {', '.join(one.synthetic_parts)}")
    exit_if_incomplete(one.num_missing_shards, one.num_shards)


def _database(config: PublishConfig, path: Path) -> PublishedDatabase:
    from encore.publish.database import publish_database

    written = publish_database(
        config.study, out=path, run=config.run, judge=config.judge, force=config.force
    )
    say(
        f"{path}: {written.num_bytes / 1e6:.1f} MB, {counted(len(written.tables), 'table')}, "
        f"{len(written.views)} views; try: duckdb {path} -c 'from entropy_accuracy'"
    )
    return written


def _dataset(config: PublishConfig, path: Path) -> PublishedDataset:
    try:
        from encore.publish.dataset import publish_dataset
    except ModuleNotFoundError as error:
        raise InputError(
            f"--dataset {path}: its card needs the package {error.name}; "
            "pip install 'encore-reward[hub,report]'"
        ) from error

    written = publish_dataset(
        config.study, out=path, run=config.run, judge=config.judge, force=config.force
    )
    say(
        f"{path}: {counted(written.num_rows, 'rated pair')}, {written.num_bytes / 1e6:.1f} MB; "
        f"look at the licences in {path / 'README.md'} before you pass it on"
    )
    if written.num_unrated_pairs:
        warn(f"{written.num_unrated_pairs:,} pairs are not rated in this run and not in it")
    return written
