"""Tasks: plan a rating run, rate one of its shards.

A shard is done when its file validates, so these tasks are neither cached nor persisted: Prefect
remembers that a task once completed, the disk knows whether its file is still there and whole.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import Task

from encore import rating
from encore.config import RatingConfig
from encore.errors import EncoreError
from encore.rating import RatingRun, ShardOutcome
from encore.rating_driver import NUM_WORKERS, choose_shards, meets_every_shard
from encore.settings import quiet_environment
from encore.shards import Shard, inspect_shard
from tasks.errors import RatingStoppedError, is_worth_retrying
from tasks.shared_run import shared_run

DEFAULT_RETRIES = 2
RETRY_DELAY_SECONDS = 5
#: How long to wait for a shard that another process rates.
BUSY_LIMIT_SECONDS = 3600.0
_BUSY_POLL_SECONDS = 1.0
#: Loading a large judge from a slow disk, twice: at the start and after a shard's time limit.
_ENGINE_START_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingPlan:
    """Which shards of which run a flow run is to look at; ``num_open`` of them are not done."""

    run_key: str
    run_dir: Path
    judge: str
    num_pairs: int
    num_rules: int
    num_shards: int
    todo: tuple[int, ...]
    num_open: int


@task(name="plan-rating", cache_policy=NO_CACHE, persist_result=False)
def plan_rating(
    study: Path, config: RatingConfig, *, only: Sequence[int] | None = None
) -> RatingPlan:
    """Open the run that study and config define, and choose its shards.

    Raises:
        EncoreError: No study, no pairs, no such rules, judge or shard.
    """
    quiet_environment()
    run = shared_run(study, config).get()
    todo = choose_shards(run, only)
    plan = RatingPlan(
        run_key=run.manifest.run_key,
        run_dir=run.run_dir,
        judge=run.manifest.judge,
        num_pairs=run.manifest.num_pairs,
        num_rules=len(run.manifest.rules),
        num_shards=len(run.manifest.shards),
        todo=tuple(shard.index for shard in todo),
        num_open=sum(not _is_done(run, shard) for shard in todo),
    )
    get_run_logger().info(
        "run %s: judge %s, %d rules, %d pairs in %d shards; %d to look at, %d of them not done",
        plan.run_key,
        plan.judge,
        plan.num_rules,
        plan.num_pairs,
        plan.num_shards,
        len(plan.todo),
        plan.num_open,
    )
    return plan


@task(name="start-judge", cache_policy=NO_CACHE, persist_result=False)
def start_judge(study: Path, config: RatingConfig) -> None:
    """Load the judge in the flow's own thread, where Ctrl-C can interrupt the minutes it takes.

    Raises:
        JudgeUnavailableError: The model or its engine cannot be loaded.
    """
    shared_run(study, config).get().judge.start()


@task(
    name="rate-shard",
    task_run_name="shard-{index}",
    tags={"judge"},  # a concurrency limit on this tag bounds the shards in work everywhere
    retries=DEFAULT_RETRIES,
    retry_delay_seconds=RETRY_DELAY_SECONDS,
    retry_condition_fn=is_worth_retrying,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def rate_shard(
    study: Path,
    config: RatingConfig,
    index: int,
    *,
    timeout_seconds: float | None = None,
    busy_limit_seconds: float = 0.0,
) -> ShardOutcome:
    """Rate one shard unless its file already validates.

    Args:
        study: The study's directory.
        config: What to rate with; must be shared by `tasks.shared_run.keep_run_open`.
        index: The shard.
        timeout_seconds: Limit of the generation. Waiting for the engine does not count. When it
            passes, the engine is discarded and the next shard gets a new one.
        busy_limit_seconds: How long to wait if another process rates the shard; 0 reports it busy.

    Raises:
        EncoreError: The judge cannot be loaded, the limit passed, or the run was stopped.
    """
    shared = shared_run(study, config)
    run = shared.get()
    shard = run.manifest.shards[index]
    try:
        outcome = _rate(run, shard, timeout_seconds, busy_limit_seconds)
    except Exception as error:
        if run.cancelled.is_set():
            raise RatingStoppedError(f"shard {index}: the run was stopped") from error
        if meets_every_shard(error):
            shared.fatal = error
        raise
    _log(outcome)
    return outcome


def shard_task(*, timeout_seconds: float | None, retries: int) -> Task[..., ShardOutcome]:
    """`rate_shard` with retries and Prefect's own time limit.

    That limit is only the outer guard, for a task that hangs elsewhere: it strikes at any line of
    Python, so it must never come first. A task may wait for the other worker's generation, for an
    engine to start, and for another process, and all this counts against it.
    """
    if timeout_seconds is None:
        return rate_shard.with_options(retries=retries)
    guard = NUM_WORKERS * timeout_seconds + _ENGINE_START_SECONDS + BUSY_LIMIT_SECONDS
    return rate_shard.with_options(retries=retries, timeout_seconds=guard)


def _is_done(run: RatingRun, shard: Shard) -> bool:
    return inspect_shard(run.run_dir, run.manifest, shard).state == "done"


def _rate(
    run: RatingRun, shard: Shard, timeout_seconds: float | None, busy_limit_seconds: float
) -> ShardOutcome:
    give_up = time.monotonic() + busy_limit_seconds
    while True:
        outcome = rating.rate_shard(run, shard, timeout_seconds=timeout_seconds)
        if outcome.action != "busy" or busy_limit_seconds == 0:
            return outcome
        if time.monotonic() > give_up:
            raise EncoreError(
                f"shard {shard.index}: another process has been rating it for "
                f"{busy_limit_seconds:g} s; see whether it hangs, then run the flow again"
            )
        if run.cancelled.wait(_BUSY_POLL_SECONDS):
            raise RatingStoppedError(f"shard {shard.index}: the run was stopped")


def _log(outcome: ShardOutcome) -> None:
    log = get_run_logger()
    log.info(
        "shard %d %s: %d ratings, %d nulls",
        outcome.index,
        outcome.action,
        outcome.num_ratings,
        outcome.num_nulls,
    )
    if outcome.null_reasons:
        log.warning("shard %d: nulls by reason: %s", outcome.index, dict(outcome.null_reasons))
    if outcome.num_truncated:
        log.warning("shard %d: %d prompts were cut to fit", outcome.index, outcome.num_truncated)
