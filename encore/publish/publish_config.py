"""Options of `encore publish`."""

from __future__ import annotations

from pathlib import Path

from encore.config import StageConfig, option


class PublishConfig(StageConfig):
    """`encore publish`: what of a study is written for others, and where."""

    study: Path = option(positional=True, help="The study directory (made by `encore ingest`).")
    out: Path | None = option(
        None,
        metavar="FILE",
        help="The database to write. Default: study.duckdb, unless --dataset is given.",
    )
    dataset: Path | None = option(
        None, metavar="FOLDER", help="The data set to write, as the hub lays one out."
    )
    run: str | None = option(
        None,
        metavar="KEY",
        help="Which run, by a unique prefix of its key, when there are several.",
    )
    judge: str | None = option(None, metavar="NAME", help="Which judge, when there are several.")
    force: bool = option(False, help="Replace what an earlier call wrote there.")
