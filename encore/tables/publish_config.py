"""Options of `encore publish`."""

from __future__ import annotations

from pathlib import Path

from encore.core.config import option
from encore.data.study_config import RunChoice, StudyConfig


class PublishConfig(RunChoice, StudyConfig):
    """`encore publish`: what of a study is written for others, and where."""

    out: Path | None = option(
        None,
        metavar="FILE",
        help="The database to write. Default: study.duckdb, unless --dataset is given.",
    )
    dataset: Path | None = option(
        None, metavar="FOLDER", help="The data set to write, as the hub lays one out."
    )
    force: bool = option(False, help="Replace what an earlier call wrote there.")
