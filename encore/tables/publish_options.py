"""Options of `encore publish`."""

from __future__ import annotations

from pathlib import Path

from encore.core.config import option
from encore.data.study_options import RunChoice, StudyConfig


class PublishConfig(RunChoice, StudyConfig):
    """Output files of `encore publish`, and the run to publish."""

    out: Path | None = option(None, metavar="FILE")
    """The database to write. Default: study.duckdb, if --dataset is not given."""
    dataset: Path | None = option(None, metavar="FOLDER")
    """The folder to write the data set to, in the layout of the Hugging Face hub."""
    force: bool = option(False)
    """Replace the output of an earlier call."""
