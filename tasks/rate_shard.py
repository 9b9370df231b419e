"""The task `rate_shard`: each shard of a rating is a task run with its state, attempts and error.

Prefect orchestrates a task in this process and sends what happened as events, so a shard never
waits for the server. What is done is read from files, never from task runs.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Cancelled
from prefect.tasks import Task

from encore.core.errors import ShardClosedError, is_engine_dead, is_worth_retrying
from encore.runs.manifest import Shard
from encore.runs.shard_files import ShardState
from encore.runs.worker import Job, RunAttempts
from tasks.server_calls import remember_task_run

#: Pauses before the second and the later attempts at a shard.
_RETRY_DELAYS_SECONDS = [1.0, 10.0]


def is_worth_another_attempt(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Return True if another attempt at a shard may succeed. This is Prefect's retry condition."""
    return is_worth_retrying(state.data)


@task(
    task_run_name="shard {index}",
    retry_delay_seconds=_RETRY_DELAYS_SECONDS,
    retry_condition_fn=is_worth_another_attempt,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def rate_shard(index: int, attempt: Callable[[], State[None] | None]) -> State[None] | None:  # noqa: ARG001 - the index is the name
    """Compute and write one shard. None means success: Prefect would keep every other result."""
    remember_task_run()
    return attempt()


def shards_as_tasks(job: Job, *, retries: int, context: contextvars.Context) -> RunAttempts:
    """Return a function that makes the attempts at a shard as a task of the current flow run.

    A shard is Cancelled if the run was cancelled, if its budget was used up, or if the engine died,
    which puts the shard back.

    Args:
        job: The run whose shards are rated.
        retries: Further attempts at a shard whose error may pass.
        context: Context of the flow, outside of every task: Prefect would show finished shards as
            rolled back if a task around them failed.
    """
    shard_task = rate_shard.with_options(retries=retries)

    def run_attempts(shard: Shard, attempt: Callable[[], ShardState]) -> ShardState:
        outcomes: list[ShardState | BaseException] = []

        def attempt_once() -> State[None] | None:
            try:
                outcome = attempt()
            except BaseException as error:
                outcomes.append(error)
                if _is_failure(job, error):
                    raise
                return Cancelled(message=f"{type(error).__name__}: {error}")
            outcomes.append(outcome)
            return Cancelled(message="the run ends early") if outcome.action == "closed" else None

        context.copy().run(shard_task, shard.index, attempt_once, return_state=True)
        assert outcomes, "a task makes at least one attempt"
        last = outcomes[-1]
        if isinstance(last, BaseException):
            raise last
        return last

    return run_attempts


def _is_failure(job: Job, error: BaseException) -> bool:
    """Return False for what interrupts a shard that has not failed."""
    is_interrupted = job.cancelled.is_set() or isinstance(error, ShardClosedError)
    return isinstance(error, Exception) and not is_interrupted and not is_engine_dead(error)
