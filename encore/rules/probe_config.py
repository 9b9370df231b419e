"""Options of `encore rules probe`."""

from __future__ import annotations

from pathlib import Path

from encore.core.config import option
from encore.data.study_config import StudyConfig
from encore.rating.rating_config import EngineRatingConfig


class ProbeConfig(EngineRatingConfig, StudyConfig):
    """`encore rules probe`: options of the rating run, the number of pairs, and paraphrases."""

    limit: None = option(None, hidden=True, identity=False, help="As --num-pairs says.")
    num_pairs: int = option(
        200,
        ge=2,
        le=10_000,
        help="Pairs that are rated in every form, a random sample by content hash; all pairs if "
        "the study has fewer.",
    )
    paraphrases: Path | None = option(
        None,
        metavar="RULES.toml",
        help="A rule set with the same rule ids in other words, rated as one more form.",
    )
