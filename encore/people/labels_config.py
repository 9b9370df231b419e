"""Config of `encore labels`: tables of labels, and how a judge rates their responses."""

from __future__ import annotations

from pathlib import Path

from encore.core.config import option
from encore.judges.judge_config import JudgeConfig
from encore.rating.rating_config import RatingConfig


class LabelsConfig(RatingConfig):
    """Config of `encore labels`: labels by people, and the judge that is compared with them."""

    files: tuple[Path, ...] = option(
        positional=True,
        metavar="FILE...",
        min_length=1,
        identity=False,
        help="Parquet, CSV or JSON lines with the columns response, rule and label (true, false or "
        "a number from 0 to 1) and optionally prompt; a column rating replaces the judge. Or the "
        "gold data of OpenAI's Rule Based Rewards.",
    )
    to: Path | None = option(
        None,
        metavar="STUDY",
        identity=False,
        help="Study for labels and ratings (in STUDY/labels/KEY). Created if it does not exist.",
    )
    judge: JudgeConfig | None = None  # type: ignore[assignment]  # a table may have ratings
    rules: str = option(
        "encore-10",
        examples=["encore-10", "my-rules.toml", "propositions.yaml"],
        help="Wording of the rules that the labels name, for the judge: encore-10, encore-20, a "
        "rule set (TOML), or the propositions of Rule Based Rewards (YAML).",
    )
