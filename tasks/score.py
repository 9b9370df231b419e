"""Score a study under Prefect, in the flow's process or by engines of their own."""

from __future__ import annotations

from functools import partial

from prefect.runtime import deployment

from encore.core.config import StageConfig
from encore.data.study import open_study
from encore.runs.engine import work_as_engine
from encore.runs.engine_messages import EngineSpec
from encore.scoring.scoring_options import ScoreConfig
from encore.scoring.scoring_run import ScoreResult, score_study, score_with_engines
from tasks.flow_reporter import FlowReporter
from tasks.pool_engines import pool_engines

_ENGINE_DEPLOYMENT = "score/encore-score-engine"


def score_shards(
    config: ScoreConfig, attempts: StageConfig, *, spec: EngineSpec | None = None
) -> ScoreResult:
    """Score the shards that are not done, here or by engines as `tasks.rate.rate_shards` does.

    Args:
        config: Study, model and settings of the scoring.
        attempts: Number of attempts, as the flow was given it, for engines.
        spec: What the supervisor asks of this engine. None if this process is no engine.

    Raises:
        EncoreError: The model cannot be opened or the study not be scored with it
            (see `encore.scoring.scoring_run.score_study`).
    """
    study = open_study(config.study)
    reporter = FlowReporter("score" if spec is None else "", config.study)
    if spec is not None:
        run_job = partial(
            work_as_engine, spec=spec, silence_seconds=config.silence_seconds, reporter=reporter
        )
        return score_study(study, config, reporter=reporter, run_job=run_job)
    if deployment.id is None:
        return score_study(study, config, reporter=reporter)
    engines = pool_engines(_ENGINE_DEPLOYMENT, config, attempts)
    return score_with_engines(study, config, reporter=reporter, **engines)
