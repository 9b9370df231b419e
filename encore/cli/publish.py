"""`encore publish`: one database file for SQL clients, one folder as a data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from encore.cli.output import exit_if_incomplete, warn_of_synthetic
from encore.core.command_parser import JsonOption, command
from encore.core.extras import require_packages
from encore.core.number_text import counted
from encore.core.terminal import print_json, say, say_next, warn
from encore.tables.publish_options import PublishConfig

if TYPE_CHECKING:
    from encore.tables.publication import Publication
    from encore.tables.publish_dataset import PublishedDataset


@command
def publish(config: PublishConfig, *, json: JsonOption = False) -> None:
    """Write a study for other people: as one DuckDB file, as a Hugging Face data set, or as both.

    encore publish STUDY --out study.duckdb

    encore publish STUDY --dataset rated-pairs

    The database has every table of the study, the library's queries as views, weights_at(tau) as a
    macro, and a table of provenance. DuckDB 1.4 and later open it. The data set has one row per
    rated pair: prompt, responses and their ratings under every rule, with a card. Both contain the
    texts of the pairs, which keep their owners' licences.

    Exit code 3: the run is not complete; its finished shards are published.
    """
    from encore.data.study import open_study
    from encore.tables.publish import publish as publish_study
    from encore.tables.publish_database import PublishedDatabase

    study = open_study(config.study)
    options: dict[str, Any] = {"run": config.run, "judge": config.judge, "force": config.force}
    published: dict[str, Publication | None] = {"database": None, "dataset": None}
    if config.out is not None or config.dataset is None:
        path = config.out or Path("study.duckdb")
        database = publish_study(study, path, is_dataset=False, **options)
        assert isinstance(database, PublishedDatabase)
        published["database"] = database
        say(
            f"{path}: {database.num_bytes / 1e6:.1f} MB, {counted(len(database.tables), 'table')}, "
            f"{len(database.views)} views"
        )
    if config.dataset is not None:
        require_packages("huggingface_hub", work="encore publish --dataset")
        from encore.tables.publish_dataset import PublishedDataset

        dataset = publish_study(study, config.dataset, is_dataset=True, **options)
        assert isinstance(dataset, PublishedDataset)
        published["dataset"] = dataset
        _say_data_set(config.dataset, dataset)
    if json:
        print_json(published)
    publication = published["dataset"] or published["database"]
    assert publication is not None
    warn_of_synthetic(publication.synthetic_parts)
    exit_if_incomplete(publication.num_missing_shards, publication.num_shards)
    if config.dataset is None:
        say_next(path, "-c", "from entropy_accuracy", program="duckdb")
    else:
        say_next("analyze", config.dataset)


def _say_data_set(folder: Path, dataset: PublishedDataset) -> None:
    say(
        f"{folder}: {counted(dataset.num_rows, 'rated pair')}, "
        f"{dataset.num_bytes / 1e6:.1f} MB; look at the licences in its README.md before you "
        "pass it on"
    )
    if dataset.num_unrated_pairs:
        warn(f"{dataset.num_unrated_pairs:,} pairs are not rated in this run and not in it")
