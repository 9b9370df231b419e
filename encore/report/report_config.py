"""Options of `encore report`."""

from __future__ import annotations

from pathlib import Path

from encore.config import StageConfig, option


class ReportConfig(StageConfig):
    """One page about some ratings."""

    ratings: Path = option(
        positional=True,
        help="A study, a Parquet file, or a folder of them (with subfolders), with the columns "
        "pair_id, source, response (chosen or rejected), rule_id and rating (0 to 1, or null).",
    )
    out: Path | None = option(
        None,
        metavar="FOLDER",
        help="Where the report goes. Default: STUDY/reports/RUN_KEY, or `report` in this "
        "directory for ratings that are not of a study.",
    )
    run: str | None = option(
        None,
        metavar="RUN_KEY",
        help="Which run, when there are several (a unique prefix of its key is enough).",
    )
    judge: str | None = option(None, help="Which judge's ratings, when there are several.")
