"""Rate a study under Prefect: one task per shard, so that a shard that fails stops no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.futures import as_completed
from prefect.task_runners import ThreadPoolTaskRunner

from encore.config import RatingConfig
from encore.data.study import open_study
from encore.errors import StudyIncompleteError, meets_every_shard
from encore.rating.rating_run import NUM_WORKERS, open_run
from encore.rating_runs import RatingManifest
from encore.runs import ShardState, inspect_shards
from encore.shard_runner import Job, RunReport, choose_shards, work_on
from tasks.artifacts import publish_failed_shards
from tasks.flow_reporter import FlowReporter
from tasks.stage import Attempts, StoppedError, is_shard_worth_another_attempt, run_stage

#: While one shard generates, another is rendered and tokenised, or parsed and written.
RATING_WORKERS = ThreadPoolTaskRunner[Any](max_workers=NUM_WORKERS)
_RETRY_DELAY_SECONDS = 5
_BUSY_POLL_SECONDS = 1.0


def rate_shards(
    study: Path,
    config: RatingConfig,
    *,
    only: Sequence[int] | None = None,
    timeout_seconds: float | None = None,
    retries: int = 2,
) -> tuple[Path, RunReport]:
    """Rate the shards that are not done, under the task runner `RATING_WORKERS`.

    Args:
        study: The study's directory.
        config: What to rate with.
        only: Shards to look at; None: all.
        timeout_seconds: Limit of a shard's generation.
        retries: Further attempts for a shard that fails.

    Returns: The rating run's folder, and what was done.

    Raises:
        EncoreError: The run cannot be opened, the judge not be loaded; shards failed.
    """
    once = Attempts(retries=0)
    run = run_stage("plan-rating", lambda: open_run(open_study(study), config), attempts=once)
    try:
        chosen = choose_shards(run.manifest, only)
        states = inspect_shards(run.run_dir, run.manifest, chosen)
        num_open = sum(state.state != "done" for state in states)
        reporter = FlowReporter("rating")
        title = f"run {run.manifest.run_key}: {len(chosen)} shards, {num_open} of them not done"
        reporter.started(title, total=len(chosen))
        if num_open:
            # In the flow's own thread, where Ctrl-C can interrupt the minutes it takes.
            run_stage("start-judge", run.judge.start, attempts=once)
        shards = _Shards(job=run.job(timeout_seconds=timeout_seconds), reporter=reporter)
        results = shards.rate([shard.index for shard in chosen], retries=retries)
    finally:
        run.cancelled.set()  # interrupts shards at work; does nothing when all are through
        run.judge.close()
    outcomes = [one for one in results.values() if isinstance(one, ShardState)]
    failed = {i: one for i, one in sorted(results.items()) if isinstance(one, BaseException)}
    failures = {index: f"{type(one).__name__}: {one}" for index, one in failed.items()}
    report = RunReport(RatingManifest, outcomes, failures)
    publish_failed_shards(failures)
    if shards.fatal is not None:
        raise shards.fatal
    if failures:
        raise StudyIncompleteError(f"{report.summary}; run the same command again for only these")
    return run.run_dir, report


@dataclass(slots=True, kw_only=True)
class _Shards:
    """Shards of one opened run as tasks; ``fatal`` is an error that every further one would meet.

    It stops the run, instead of each starting an engine for minutes to find out.
    """

    job: Job
    reporter: FlowReporter
    fatal: Exception | None = None

    def rate(self, indices: Sequence[int], *, retries: int) -> dict[int, Any]:
        """Outcome or error of each shard; those of another process are waited for last."""
        results = self._submit(indices, retries=retries, waits=False)
        busy = [index for index, found in results.items() if _is_busy(found)]
        return results | self._submit(sorted(busy), retries=retries, waits=True)

    def _submit(self, indices: Sequence[int], *, retries: int, waits: bool) -> dict[int, Any]:
        @task(
            name="rate-shard",
            task_run_name="shard-{index}",
            retries=retries,
            retry_delay_seconds=_RETRY_DELAY_SECONDS,
            retry_condition_fn=is_shard_worth_another_attempt,
            cache_policy=NO_CACHE,
            persist_result=False,
        )
        def rate_shard(index: int) -> ShardState:
            return self._rate(index, waits=waits)

        futures = {rate_shard.submit(index): index for index in indices}
        results: dict[int, Any] = {}
        for future in as_completed(list(futures)):
            future.wait()  # without it the state may lag behind
            found = results[futures[future]] = future.state.result(raise_on_failure=False)
            if not _is_busy(found):
                self.reporter.advanced()
        return results

    def _rate(self, index: int, *, waits: bool) -> ShardState:
        cancelled, shard = self.job.cancelled, self.job.manifest.shards[index]
        try:
            while not cancelled.is_set():
                outcome = work_on(self.job, shard)
                if outcome.action != "busy" or not waits:
                    said = (outcome.index, outcome.action, dict(outcome.counts))
                    get_run_logger().info("shard %d %s: %s", *said)
                    return outcome
                cancelled.wait(_BUSY_POLL_SECONDS)
        except Exception as error:
            if not cancelled.is_set():
                if meets_every_shard(error):
                    self.fatal = error
                    cancelled.set()
                raise
        raise StoppedError(f"shard {index}: the run was stopped")


def _is_busy(found: object) -> bool:
    return isinstance(found, ShardState) and found.action == "busy"
