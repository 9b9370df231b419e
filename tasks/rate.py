"""Rate a study under Prefect: by a judge in the flow's process, or by servers on the GPU pool.

Each shard is a task run of the flow run. What is done is read from files, never from task runs.
"""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from prefect.runtime import deployment

from encore.core.config import StageConfig, option
from encore.core.errors import StudyIncompleteError
from encore.data.study import open_study
from encore.judges.base import Judge
from encore.judges.judge_options import JudgeConfig
from encore.rating.rating_options import RatingConfig, RatingRunOptions
from encore.rating.rating_run import open_run
from encore.rating.replies import note_on_refusals
from encore.runs.worker import RunReport, work_through
from tasks.artifacts import EngineTable, publish_failed_shards
from tasks.flow_reporter import FlowReporter
from tasks.pool_servers import PoolServers, ServersConfig, num_pool_servers
from tasks.rate_shard import shards_as_tasks
from tasks.stage_task import Attempts, run_stage

logger = logging.getLogger(__name__)

#: Shows the table of engines: ``now``, or if it is time.
ShowEngines = Callable[..., None]


class ShardAttempts(StageConfig):
    """Number of attempts at a shard."""

    shard_retries: int = option(2, ge=0, le=10)
    """Further attempts for a shard that fails."""


def rate_shards(
    study: Path,
    config: RatingConfig,
    how: RatingRunOptions,
    attempts: ShardAttempts,
    servers: ServersConfig,
) -> tuple[Path, RunReport]:
    """Rate the shards that are not done, and return the rating run's folder and a report.

    A run of a deployment asks vLLM servers on the GPU pool, which it starts if they are not there.
    A command rates in its own process, or with local engines.

    Args:
        study: Directory of the study to rate.
        config: Judge, rules and settings.
        how: Engines, shards of this call, limits at which it ends.
        attempts: Number of attempts at a shard.
        servers: Options of the servers on the GPU pool.

    Raises:
        EncoreError: The run cannot be opened, or the judge cannot be loaded.
        StudyIncompleteError: Shards failed, or a limit such as the budget ended the run.
    """
    reporter = FlowReporter("rating", study)
    flow_context = contextvars.copy_context()

    def rate() -> tuple[Path, RunReport]:
        judge, show_engines = _pool_judge(study, config.judge, how, servers) or (None, None)
        run = open_run(open_study(study), config, how, judge=judge)
        with closing(run.judge):
            job = run.job(reporter=reporter)
            run_attempts = shards_as_tasks(
                job, retries=attempts.shard_retries, context=flow_context
            )
            report = work_through(replace(job, run_attempts=run_attempts), reporter=reporter)
            if show_engines is not None:
                show_engines(now=True)
        reporter.show_progress()
        if note := note_on_refusals(report):
            logger.warning(note)
        publish_failed_shards(report.failures, study=study)
        _raise_if_incomplete(report)
        return run.run_dir, report

    return run_stage("rate", rate, attempts=Attempts(retries=0))


def _raise_if_incomplete(report: RunReport) -> None:
    """Raise StudyIncompleteError if shards failed, or a limit such as the budget ended the run."""
    if report.failures:
        raise StudyIncompleteError(
            f"{report.summary}: shards {', '.join(map(str, report.failures))}; run the same "
            "command again for only these"
        )
    if report.early_stop is not None and not report.early_stop.is_success:
        raise StudyIncompleteError(report.early_stop.reason)


def _pool_judge(
    study: Path, config: JudgeConfig, how: RatingRunOptions, options: ServersConfig
) -> tuple[Judge, ShowEngines] | None:
    """Return the judge on servers of the GPU pool, and a function that shows how they are.

    None where the judge is opened in this process.
    """
    if deployment.id is None or config.backend != "vllm":
        return None
    # Its HTTP client takes a second to import, and other runs have no use for it.
    from encore.judges.served_judge import ServedJudge

    servers = PoolServers(
        config=config, num_servers=num_pool_servers(how.engines), keep_minutes=options.keep_minutes
    )
    judge = ServedJudge(config, config.server(how), servers=servers)
    table = EngineTable(study)
    show_engines = partial(table.show, lambda: servers.rows(judge.server_rows()))
    servers.show = show_engines
    return judge, show_engines
