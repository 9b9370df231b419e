"""Options that name a study, one of its rating runs, or ratings from anywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, WithJsonSchema

from encore.buckets.study_mirror import study_path
from encore.core.config import StageConfig, option
from encore.core.errors import EncoreError, InputError


def _local_folder(study: Any) -> Any:
    """Return the folder of a study's local copy for an address in a bucket; else the value.

    Raises:
        EncoreError: The address is wrong, or the bucket cannot be read. No `ValueError`, with which
            pydantic would show the value: a key may be in it.
    """
    try:
        if isinstance(study, Path):
            return study_path(study)
        return os.fspath(study_path(study)) if isinstance(study, str) else study
    except InputError as error:
        raise EncoreError(str(error)) from error


#: The folder of a study. The address of one in a bucket becomes the folder of its local copy.
StudyFolder = Annotated[Path, BeforeValidator(_local_folder)]


_STUDY_HELP = "The study directory (made by `encore ingest`), or its address in a bucket."
#: The study of a stage: the argument of a command, the first field of a flow's form.
StudyArgument = Annotated[
    StudyFolder,
    option(positional=True, help=_STUDY_HELP),
    WithJsonSchema({"type": "string", "format": "path", "description": _STUDY_HELP}),
]


class StudyConfig(StageConfig):
    """Options of a command that has a study and no stage's config."""

    study: StudyArgument


class RunFilter(StageConfig):
    """Options of a stage that reads all rating runs of a study, or the one that they name."""

    run: str | None = option(None, metavar="RUN_KEY")
    """Key of the one rating run to read, or a unique prefix. Default: all runs."""
    judge: str | None = option(None, name="judge-name", metavar="NAME")
    """Name of the judge whose ratings are read."""


class RunChoice(RunFilter):
    """Options of a stage that reads the ratings of one run of a study."""

    run: str | None = option(None, metavar="RUN_KEY")
    """Key of the rating run to read, or a unique prefix. Default: the run with most pairs."""


class RatingTableOptions(StageConfig):
    """Options that say how to read a table of ratings from elsewhere."""

    scale: str | None = option(None, metavar="LOW,HIGH")
    """Ends of the scale of a table's ratings, if it is not 0 to 1, e.g. 1,5: they are mapped to 0
    to 1. A rating outside is an error."""
    rule_columns: str | None = option(None, metavar="NAME,NAME,...")
    """Columns of a wide table that are rules. Default: all but pair_id, source, response, prompt_id
    and prompt."""
    rating: Literal["level", "expected"] = option("level")
    """level: the label that the judge gave. expected: the mean over the labels' probabilities, in
    runs of --decode expected; entropies stay those of the labels."""

    @property
    def table_layout(self) -> dict[str, Any]:
        """Return the options as arguments of `encore.warehouse.open_ratings`."""
        return {"scale": self.scale, "rule_columns": self.rule_columns}


class RatingsConfig(RatingTableOptions, RunChoice):
    """Options of a stage that reads ratings from a study or from files."""

    ratings: StudyFolder = option(positional=True)
    """A study; a file of CSV, JSON, Parquet or Arrow, as for `encore ingest`; a folder of Parquet
    files (with subfolders); or a published data set. Columns of a file: pair_id, source, response
    (chosen or rejected), rule_id and rating (0 to 1, or null); or pair_id, response and a column
    for each rule."""
