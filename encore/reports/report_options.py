"""Options of `encore report`."""

from __future__ import annotations

from pathlib import Path

from encore.core.config import option
from encore.data.study_options import RatingsConfig


class ReportConfig(RatingsConfig):
    """Options of `encore report`: the ratings, and where the report goes."""

    out: Path | None = option(None, metavar="FOLDER")
    """Where the report goes; a name that ends in .html is the page alone. Default:
    STUDY/reports/RUN_KEY, or `report` in this directory for ratings that are not of a study."""
    label_curve: bool = option(False)
    """Show from how many labels on fitted weights beat weights without labels; takes about ten
    seconds for each 1,000 pairs."""
