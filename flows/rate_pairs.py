"""Flow: have a judge rate every response of a study, shard by shard.

As a command, with or without a Prefect server: ``python -m flows.rate_pairs STUDY --judge JUDGE``.
"""

from __future__ import annotations

from prefect.client.schemas.objects import State
from prefect.states import Completed

from encore.analysis.analyze import analyze
from encore.data.study_options import StudyArgument
from encore.rating.rating_options import RatingConfig, RatingRunOptions
from flows.command import run_command
from flows.study_flow import study_flow
from tasks.artifacts import publish_statistics
from tasks.pool_servers import ServersConfig
from tasks.rate import ShardAttempts, rate_shards
from tasks.stage_task import run_stage


@study_flow("rate-pairs", stage="rate")
def rate_pairs(
    study: StudyArgument,
    config: RatingConfig,
    how: RatingRunOptions = RatingRunOptions(),
    attempts: ShardAttempts = ShardAttempts(),
    servers: ServersConfig = ServersConfig(),
) -> State:
    """Have a judge rate a study under Prefect, shard by shard, with retries and a time limit.

    Without PREFECT_API_URL a temporary server is started for this run; with it, the run and its
    artifacts (failed shards, progress, rule statistics) are kept on that server. Run the same
    command again to rate only what is missing, damaged or failed.

    Exit code 3: finished, but some shards failed.

    Example: python -m flows.rate_pairs study --judge ./my-judge --limit 200
    """
    run_dir, report = rate_shards(study, config, how, attempts, servers)
    publish_statistics(run_stage("analyze", lambda: analyze(run_dir)), study=study)
    return Completed(message=report.message, data=report)


if __name__ == "__main__":
    run_command(rate_pairs)
