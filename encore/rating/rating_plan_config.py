"""Options of `encore plan rate`: those of a rating run, and those of its hardware."""

from __future__ import annotations

from encore.core.config import option
from encore.data.study_config import StudyConfig
from encore.model.gpus import UTILISATION
from encore.rating.rating_config import PricesConfig, RatingConfig


class PlanRateConfig(PricesConfig, RatingConfig, StudyConfig):
    """Options of `encore plan rate`: a rating run and its hardware."""

    gpu: str | None = option(
        None, metavar="GPU", help="Estimate hours on h100-80, h200-141, a100-80, l40s-48…"
    )
    count: int = option(
        1, ge=1, help="Number of GPUs, or, without --gpu, of machines like this one."
    )
    utilisation: float = UTILISATION
    calibrate: int | None = option(
        None,
        ge=1,
        metavar="PAIRS",
        help="Measure hours and replies: rate this many pairs here, as `encore rate --limit` does. "
        "The ratings are kept, and a larger run does not ask for them again.",
    )
