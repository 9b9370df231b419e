"""Plan a rating run or a training run, by the kind of its configuration."""

from __future__ import annotations

from pathlib import Path

from encore.core.errors import InputError
from encore.core.reporting import SILENT, Reporter
from encore.data.study import Study, as_study
from encore.rating.rating_options import PlanRateConfig, ReplyOptions
from encore.rating.rating_plan import RatingPlan, plan_rating
from encore.training.training_plan import PlanTrainConfig, TrainingPlan, plan_training


def plan(
    study: Study | str | Path | None,
    config: PlanRateConfig | PlanTrainConfig,
    replies: ReplyOptions = ReplyOptions(),
    *,
    reporter: Reporter = SILENT,
) -> RatingPlan | TrainingPlan:
    """Estimate calls, tokens, hours and money of a rating, or memory and tokens of a training.

    Args:
        study: The study, or its directory; None for a training whose config has the counts.
        config: Options of `encore plan rate` or `encore plan train`.
        replies: The judge's server, and how long its replies are waited for.
        reporter: Receiver of progress events.
    """
    if isinstance(config, PlanTrainConfig):
        return plan_training(None if study is None else as_study(study), config)
    if study is None:
        raise InputError("plan(None, …): a rating is planned for a study; give its path")
    return plan_rating(as_study(study), config, replies, reporter=reporter)
