"""Options that name a study, one of its rating runs, or ratings from anywhere."""

from __future__ import annotations

from pathlib import Path

from encore.core.config import StageConfig, unkeyed_option


class StudyConfig(StageConfig):
    """What a stage of a study works on."""

    study: Path = unkeyed_option(
        positional=True, help="The study directory (made by `encore ingest`)."
    )


class RunKeyConfig(StageConfig):
    """Which rating run of a study."""

    run: str | None = unkeyed_option(
        None,
        metavar="RUN_KEY",
        help="Which run, when there are several (a unique prefix of its key is enough).",
    )


class RunChoice(RunKeyConfig):
    """Which ratings of a study are read."""

    judge: str | None = unkeyed_option(
        None, metavar="NAME", help="Which judge, when there are several."
    )


class RatingsConfig(RunChoice):
    """Which ratings are read, by stages that look at ratings from anywhere."""

    ratings: Path = unkeyed_option(
        positional=True,
        help="A study, a Parquet file, or a folder of them (with subfolders), with the columns "
        "pair_id, source, response (chosen or rejected), rule_id and rating (0 to 1, or null).",
    )
