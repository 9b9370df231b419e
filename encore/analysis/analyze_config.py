"""Options of `encore analyze`."""

from __future__ import annotations

from encore.config import RatingsConfig, option


class AnalyzeConfig(RatingsConfig):
    """What `encore analyze` measures."""

    by_source: bool = option(False, help="Rows for each source, then for all sources together.")
    compare: str | None = option(
        None,
        metavar="OTHER",
        help="Also: how far do these ratings and OTHER agree? Two judges, two repeats or two "
        "layouts of the same pairs: a path like RATINGS, or a run key or judge of RATINGS.",
    )
