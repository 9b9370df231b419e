"""Rate a study under Prefect, in the flow's process or by engines of their own.

The shards are no tasks: what is done is read from files, and a call of the server for each shard
would cost more than the shard's own overhead.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

from prefect.runtime import deployment

from encore.core.config import StageConfig, option
from encore.core.errors import StudyIncompleteError
from encore.data.study import open_study
from encore.rating.rating_config import RateConfig, RatingConfig
from encore.rating.rating_run import open_run, rating_job_runner
from encore.rating.replies import note_on_refusals
from encore.runs.engine import work_as_engine
from encore.runs.engine_messages import EngineSpec
from encore.runs.engine_supervisor import supervise
from encore.runs.local_engines import JobRunner
from encore.runs.shard_runner import RunReport
from tasks.artifacts import publish_failed_shards
from tasks.flow_reporter import FlowReporter
from tasks.pool_engines import by_pool
from tasks.stage import Attempts, run_stage

logger = logging.getLogger(__name__)

_ENGINE = "rate-pairs/encore-rate-engine"


class ShardAttempts(StageConfig):
    """How hard a shard is tried."""

    shard_retries: int = option(2, ge=0, le=10, help="Further attempts for a shard that fails.")


def rate_shards(
    study: Path, config: RatingConfig, attempts: ShardAttempts, *, spec: EngineSpec | None = None
) -> tuple[Path, RunReport]:
    """Rate the shards that are not done.

    A run of a deployment has engines rate them, on the GPU pool; a command rates here, or with
    local engines. An engine rates its share and what others leave.

    Args:
        study: The study's directory.
        config: What to rate with; a `RateConfig` also says which shards.
        attempts: The flow's parameter of that name.
        spec: What a parent asks of this engine; None: this is no engine.

    Returns: The rating run's folder, and what was done.

    Raises:
        EncoreError: The run cannot be opened, the judge not be loaded; shards failed.
    """
    whole = RateConfig.model_validate({"study": study, **dict(config)})
    reporter = FlowReporter("rating" if spec is None else "", study)

    def rate() -> tuple[Path, RunReport]:
        opened = open_study(study)
        run = open_run(opened, whole)
        how: dict[str, Any] = {"silence_seconds": whole.silence_seconds, "reporter": reporter}
        run_job: JobRunner
        if spec is not None:
            run_job = partial(work_as_engine, spec=spec, **how)
        elif deployment.id is None:
            run_job = rating_job_runner(
                opened, whole, retries=attempts.shard_retries, reporter=reporter
            )
        else:
            run_job = partial(supervise, **by_pool(_ENGINE, whole, attempts), **how)
        try:
            return run.run_dir, run_job(run.job(retries=attempts.shard_retries, reporter=reporter))
        finally:
            run.judge.close()

    run_dir, report = run_stage("rate", rate, attempts=Attempts(retries=0))
    if spec is None:
        if note := note_on_refusals(report):
            logger.warning(note)
        publish_failed_shards(report.failures, study=study)
        if report.failures:
            raise StudyIncompleteError(
                f"{report.summary}: shards {', '.join(map(str, report.failures))}; run the same "
                "command again for only these"
            )
        if report.early_stop is not None and not report.early_stop.is_success:
            raise StudyIncompleteError(report.early_stop.reason)
    return run_dir, report
