"""Publish a study as a DuckDB file or as a data set, by the name of the output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from encore.data.study import Study
from encore.tables.publication import Publication
from encore.tables.publish_database import publish_database
from encore.tables.publish_dataset import publish_dataset


def publish(study: Study | str | Path, out: str | Path, **options: Any) -> Publication:
    """Write a study for other people, as a DuckDB file or as a Hugging Face data set.

    >>> publish("study", "published").num_rows
    40

    Args:
        study: The study, or its directory.
        out: A name that ends in ``.duckdb`` becomes a DuckDB file, another the folder of a data
            set.
        **options: ``run``, ``judge`` and ``force``, as in `publish_database`.

    Raises:
        InputError: There is no study or no ratings, no run is chosen, or ``out`` may not be
            replaced.
    """
    write = publish_database if Path(out).suffix == ".duckdb" else publish_dataset
    return write(study, out=out, **options)
