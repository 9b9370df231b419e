"""`encore publish`: one database file for SQL clients, one folder as a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from encore.cli.output import exit_if_incomplete, require_packages
from encore.core.number_text import counted
from encore.core.options import JsonOption, command
from encore.core.terminal import print_json, say, warn
from encore.tables.publish_config import PublishConfig


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
    written: dict[str, Any] = {"database": None, "dataset": None}
    if config.out is not None or config.dataset is None:
        from encore.tables.publish_database import publish_database

        path = config.out or Path("study.duckdb")
        one = written["database"] = publish_database(config.study, out=path, **chosen)
        say(
            f"{path}: {one['num_bytes'] / 1e6:.1f} MB, {counted(len(one['tables']), 'table')}, "
            f"{len(one['views'])} views; try: duckdb {path} -c 'from entropy_accuracy'"
        )
    if config.dataset is not None:
        require_packages(("huggingface_hub", "jinja2"), doing="its card", extras="hub,report")
        from encore.tables.publish_dataset import publish_dataset

        one = written["dataset"] = publish_dataset(config.study, out=config.dataset, **chosen)
        say(
            f"{config.dataset}: {counted(one['num_rows'], 'rated pair')}, "
            f"{one['num_bytes'] / 1e6:.1f} MB; look at the licences in its README.md before you "
            "pass it on"
        )
        if one["num_unrated_pairs"]:
            warn(f"{one['num_unrated_pairs']:,} pairs are not rated in this run and not in it")
    if json:
        print_json(written)
    if one["is_synthetic"]:
        say(f"synthetic, and marked so: {', '.join(one['synthetic_parts'])}")
    exit_if_incomplete(one["num_missing_shards"], one["num_shards"])
