"""The rating stage that both flows share: one task per shard, its progress and its failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from prefect.client.schemas.objects import State
from prefect.futures import as_completed
from prefect.states import Completed, Failed

from encore.config import RatingConfig
from encore.errors import EncoreError, StudyIncompleteError
from encore.rating import ShardOutcome
from encore.rating_driver import RatingReport, meets_every_shard
from tasks.artifacts import ShardProgress, publish_failed_shards
from tasks.rate import BUSY_LIMIT_SECONDS, RatingPlan, plan_rating, shard_task, start_judge
from tasks.shared_run import keep_run_open

_Result = ShardOutcome | BaseException


def rate_study(
    study: Path,
    rating: RatingConfig,
    *,
    only: Sequence[int] | None,
    shard_timeout_seconds: float | None,
    shard_retries: int,
    before_judge: Callable[[], None] | None = None,
) -> tuple[RatingPlan, RatingReport, State | None]:
    """Rate the shards that are not done; a shard that fails does not stop the others.

    Args:
        study: The study's directory.
        rating: What to rate with.
        only: Shards to look at; None: all.
        shard_timeout_seconds: Limit of a shard's generation.
        shard_retries: Further attempts for a shard that fails.
        before_judge: Called where shards are open, before the judge's weights are loaded; raises
            where they must not be.

    Returns:
        The plan, what was done, and the flow's final state if shards failed (else None).

    Raises:
        EncoreError: The run cannot be opened or planned.
    """
    with keep_run_open(study, rating):
        plan = plan_rating(study, rating, only=only)
        progress = ShardProgress(num_shards=len(plan.todo))
        progress.start()
        if plan.num_open:
            if before_judge is not None:
                before_judge()
            start_judge(study, rating)

        def rate(indices: Sequence[int], *, busy_limit_seconds: float) -> dict[int, _Result]:
            task = shard_task(timeout_seconds=shard_timeout_seconds, retries=shard_retries)
            futures = {
                task.submit(
                    study,
                    rating,
                    index,
                    timeout_seconds=shard_timeout_seconds,
                    busy_limit_seconds=busy_limit_seconds,
                ): index
                for index in indices
            }
            results: dict[int, _Result] = {}
            for future in as_completed(list(futures)):
                future.wait()  # without it the state may lag behind
                result = future.state.result(raise_on_failure=False)
                results[futures[future]] = result
                if not _is_busy(result):
                    progress.advance()
            return results

        results = rate(plan.todo, busy_limit_seconds=0.0)
        # What another process was rating is looked at again after everything else is done.
        busy = [index for index, result in results.items() if _is_busy(result)]
        results |= rate(sorted(busy), busy_limit_seconds=BUSY_LIMIT_SECONDS)
    report = _report(results)
    publish_failed_shards(report.failures)
    return plan, report, _failed_state(results, report)


def completed(report: RatingReport, *, data: object) -> State:
    """The final state of a flow run in which no shard failed."""
    return Completed(message=report.summary, data=data)


def _is_busy(result: _Result) -> bool:
    return isinstance(result, ShardOutcome) and result.action == "busy"


def _report(results: dict[int, _Result]) -> RatingReport:
    outcomes = {index: found for index, found in results.items() if isinstance(found, ShardOutcome)}
    return RatingReport(
        outcomes=tuple(outcomes[index] for index in sorted(outcomes)),
        failures={
            index: f"{type(found).__name__}: {found}"
            for index, found in sorted(results.items())
            if isinstance(found, BaseException)
        },
    )


def _failed_state(results: dict[int, _Result], report: RatingReport) -> State | None:
    """Failed with the summary; its error tells the command line what to print and return."""
    if not report.failures:
        return None
    errors = [found for found in results.values() if isinstance(found, BaseException)]
    fatal = next((error for error in errors if meets_every_shard(error)), None)
    incomplete = StudyIncompleteError(
        f"{report.summary}; run the same command again to rate only the failed shards"
    )
    return Failed(message=report.summary, data=_as_encore_error(fatal) or incomplete)


def _as_encore_error(fatal: BaseException | None) -> EncoreError | None:
    if fatal is None or isinstance(fatal, EncoreError):
        return fatal
    return EncoreError(str(fatal))
