"""Rate a study under Prefect, in the flow's process or by engines of their own.

What is done is read from files. The task runs of the shards only show what happens to each.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from prefect.runtime import deployment

from encore.core.config import StageConfig, option
from encore.core.errors import StudyIncompleteError
from encore.data.study import open_study
from encore.rating.rating_options import RateConfig, RatingConfig
from encore.rating.rating_run import open_run, run_rating_job
from encore.rating.replies import note_on_refusals
from encore.runs.engine import work_as_engine
from encore.runs.engine_messages import EngineSpec
from encore.runs.engine_supervisor import supervise
from encore.runs.local_engines import JobRunner
from encore.runs.shard_runner import RunReport
from tasks.artifacts import publish_failed_shards
from tasks.flow_reporter import FlowReporter
from tasks.pool_engines import pool_engines
from tasks.rate_shard import shards_as_tasks
from tasks.stage_task import Attempts, run_stage

logger = logging.getLogger(__name__)

_ENGINE_DEPLOYMENT = "rate-pairs/encore-rate-engine"


class ShardAttempts(StageConfig):
    """Number of attempts at a shard."""

    shard_retries: int = option(2, ge=0, le=10)
    """Further attempts for a shard that fails."""


def rate_shards(
    study: Path, config: RatingConfig, attempts: ShardAttempts, *, spec: EngineSpec | None = None
) -> tuple[Path, RunReport]:
    """Rate the shards that are not done, and return the rating run's folder and a report.

    A run of a deployment has engines on the GPU pool rate them. A command rates in its own process,
    or with local engines. An engine rates its share, then shards that other engines leave.

    Args:
        study: The study's directory.
        config: Judge, rules and settings. A `RateConfig` also says which shards are rated.
        attempts: Number of attempts at a shard, as the flow was given it.
        spec: What the supervisor asks of this engine. None if this process is no engine.

    Raises:
        EncoreError: The run cannot be opened, or the judge cannot be loaded.
        StudyIncompleteError: Shards failed, or a limit such as the budget ended the run.
    """
    rate_config = RateConfig.model_validate({"study": study, **dict(config)})
    reporter = FlowReporter("rating" if spec is None else "", study)

    def rate() -> tuple[Path, RunReport]:
        opened = open_study(study)
        run = open_run(opened, rate_config)
        silence_seconds = rate_config.silence_seconds
        run_job: JobRunner
        if spec is not None:
            run_job = partial(
                work_as_engine, spec=spec, silence_seconds=silence_seconds, reporter=reporter
            )
        elif deployment.id is None:
            run_job = partial(
                run_rating_job,
                study=opened,
                config=rate_config,
                retries=attempts.shard_retries,
                reporter=reporter,
            )
        else:
            engines = pool_engines(_ENGINE_DEPLOYMENT, rate_config, attempts)
            run_job = partial(
                supervise, **engines, silence_seconds=silence_seconds, reporter=reporter
            )
        with closing(run.judge):
            job = run.job(
                is_supervised=spec is not None or deployment.id is not None, reporter=reporter
            )
            run_attempts = shards_as_tasks(job, retries=attempts.shard_retries)
            report = run_job(replace(job, run_attempts=run_attempts))
        reporter.show_progress()
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
        return run.run_dir, report

    return run_stage("rate", rate, attempts=Attempts(retries=0))
