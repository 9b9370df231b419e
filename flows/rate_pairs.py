"""Flow: have a judge rate every response of a study, shard by shard.

As a command, with or without a Prefect server: ``python -m flows.rate_pairs STUDY --judge JUDGE``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from encore.cli import rating_options as options
from encore.cli.output import StudyArgument
from encore.config import RatingConfig
from encore.rating_driver import NUM_WORKERS
from flows.command import run_command, run_flow
from flows.rating_stage import completed, rate_study
from tasks.analyze import analyze_ratings
from tasks.artifacts import publish_statistics
from tasks.errors import log_expected_errors_in_one_line
from tasks.rate import DEFAULT_RETRIES

ShardIndex = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Retries = Annotated[int, Field(ge=0, le=10)]


# While one shard generates, another is rendered and tokenised, or parsed and written.
@flow(
    name="rate-pairs",
    task_runner=ThreadPoolTaskRunner[Any](max_workers=NUM_WORKERS),
    persist_result=False,
)
def rate_pairs(
    study: Path,
    rating: RatingConfig,
    shards: list[ShardIndex] | None = None,
    shard_timeout_seconds: Seconds | None = None,
    shard_retries: Retries = DEFAULT_RETRIES,
) -> State:
    """Have a judge rate every response under every rule, one task per shard.

    Only shards that are missing, damaged or failed are rated, whatever an earlier run remembers.

    Args:
        study: The study's directory, made by `encore ingest`; relative to the working directory.
        rating: Judge, rules and plan. Changing any of it makes a new run beside the old one.
        shards: Look only at these shards, e.g. [3, 17]; default: all.
        shard_timeout_seconds: Give up on a shard whose generation takes longer.
        shard_retries: Further attempts for a shard that fails.
    """
    log_expected_errors_in_one_line()
    plan, report, failed = rate_study(
        study,
        rating,
        only=shards,
        shard_timeout_seconds=shard_timeout_seconds,
        shard_retries=shard_retries,
    )
    if failed is not None:
        return failed
    publish_statistics(analyze_ratings(plan.run_dir))
    return completed(report, data=plan)


def main(
    study: StudyArgument,
    judge: options.Judge,
    rules: options.Rules = "encore-10",
    shard_size: options.ShardSize = 1000,
    limit: options.Limit = None,
    backend: options.Backend = "vllm",
    revision: options.Revision = None,
    dtype: options.Dtype = "auto",
    max_model_len: options.MaxModelLen = None,
    overlong: options.Overlong = "set-aside",
    max_reply_tokens: options.MaxReplyTokens = 16,
    engine_arg: options.EngineArgs = None,
    shard: options.Shards = None,
    shard_timeout_seconds: options.ShardTimeout = None,
    shard_retries: options.ShardRetries = DEFAULT_RETRIES,
) -> None:
    """Have a judge rate a study under Prefect: one task per shard, with retries and a time limit.

    Without PREFECT_API_URL a temporary server is started for this run; with it, the run and its
    artifacts (failed shards, progress, rule statistics) are kept on that server. Run the same
    command again to rate only what is missing, damaged or failed.

    Exit code 3: finished, but some shards failed.

    Example: python -m flows.rate_pairs study --judge ./my-judge --limit 200
    """
    rating = options.rating_config(
        judge=judge,
        rules=rules,
        shard_size=shard_size,
        limit=limit,
        backend=backend,
        revision=revision,
        dtype=dtype,
        max_model_len=max_model_len,
        overlong=overlong,
        max_reply_tokens=max_reply_tokens,
        engine_arg=engine_arg,
    )
    run_flow(
        rate_pairs,
        study=study,
        rating=rating,
        shards=shard,
        shard_timeout_seconds=shard_timeout_seconds,
        shard_retries=shard_retries,
    )


if __name__ == "__main__":
    run_command(main)
