"""`encore publish`: one database file for SQL clients, one folder as a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from encore.cli.output import counted, exit_if_incomplete
from encore.config import PublishConfig
from encore.errors import InputError
from encore.options import JsonOption, command
from encore.terminal import print_json, say, warn


@command
def publish(config: PublishConfig, *, json: JsonOption = False) -> None:
    """Give a study to others: as one DuckDB file, as a Hugging Face data set, or as both.

    encore publish STUDY --out study.duckdb

    encore publish STUDY --dataset rated-pairs

    The database holds every table of the study, the library's queries as views, weights_at(tau)
    as a macro, and a table of provenance; any DuckDB from 1.4 on opens it. The data set has one
    row per rated pair: prompt, responses and their ratings under every rule, with a card. Both
    hold the texts of the pairs, which stay under their owners' licences.

    Exit code 3: the run is not complete; what is published are its finished shards.
    """
    chosen: dict[str, Any] = {"run": config.run, "judge": config.judge, "force": config.force}
    database, dataset = None, None
    if config.out is not None or config.dataset is None:
        from encore.publish.database import publish_database

        path = config.out or Path("study.duckdb")
        database = publish_database(config.study, out=path, **chosen)
        say(
            f"{path}: {database.num_bytes / 1e6:.1f} MB, {counted(len(database.tables), 'table')}, "
            f"{len(database.views)} views; try: duckdb {path} -c 'from entropy_accuracy'"
        )
    if config.dataset is not None:
        try:
            from encore.publish.dataset import publish_dataset
        except ModuleNotFoundError as error:
            raise InputError(
                f"--dataset {config.dataset}: its card needs the package {error.name}; "
                "pip install 'encore-reward[hub,report]'"
            ) from error

        dataset = publish_dataset(config.study, out=config.dataset, **chosen)
        say(
            f"{config.dataset}: {counted(dataset.num_rows, 'rated pair')}, "
            f"{dataset.num_bytes / 1e6:.1f} MB; look at the licences in its README.md before you "
            "pass it on"
        )
        if dataset.num_unrated_pairs:
            warn(f"{dataset.num_unrated_pairs:,} pairs are not rated in this run and not in it")
    if json:
        written = {"database": database, "dataset": dataset}
        print_json({name: one.as_dict() if one else None for name, one in written.items()})
    one = database or dataset
    assert one is not None
    if one.synthetic_parts:
        say(f"synthetic, and marked so: {', '.join(one.synthetic_parts)}")
    exit_if_incomplete(one.num_missing_shards, one.num_shards)
