"""Options of `encore theory`."""

from __future__ import annotations

from pathlib import Path

from encore.config import RatingsConfig, option


class TheoryConfig(RatingsConfig):
    """What `encore theory` examines."""

    ratings: Path | None = option(  # type: ignore[assignment]  # not needed for a synthetic world
        None,
        positional=True,
        identity=False,
        help="A study, a Parquet file, or a folder of them, as for `encore analyze`.",
    )
    synthetic: bool = option(
        False,
        help="Instead of ratings: a synthetic world in which the theorem's premise holds, ten "
        "rules that are more and more noise.",
    )
    tau: float = option(2.0, gt=0, help="Temperature of ENCORE's weights.")
    seed: int = option(0, ge=0, help="Of the synthetic world, of weights near zero, of samples.")
