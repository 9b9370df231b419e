"""Options of `encore browse`."""

from __future__ import annotations

from encore.config import RunChoice, StudyConfig, option


class BrowseConfig(RunChoice, StudyConfig):
    """A page over a study; without a run or a judge, over all of its runs."""

    host: str = option("127.0.0.1", help="Address to listen on; the default is this machine alone.")
    port: int = option(0, ge=0, le=65_535, help="0: any free one.")
