"""Run any stage as a Prefect task: retries after passing failures, a time limit, freed memory.

What is done is read from files, so no task is cached or persisted: another attempt, in this process
or any other, does only what is missing.
"""

from __future__ import annotations

import gc
import logging
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import httpx
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_logger
from prefect.tasks import Task

from encore.core.config import StageConfig, option
from encore.core.errors import EncoreError, stops_the_run
from encore.core.settings import prepare_environment
from tasks.server_calls import remember_task_run

Result = TypeVar("Result")

_NETWORK_ERRORS = (ConnectionError, TimeoutError, httpx.TransportError)
_RETRY_DELAYS_SECONDS = [10.0, 60.0]


def retries_option(name: str | None = None) -> Any:
    """Return the field ``retries`` of a config, with an option name of its own."""
    help_text = "Attempts after a network or a device failed."
    return option(2, name=name, ge=0, le=10, help=help_text)


class Attempts(StageConfig):
    """Number of attempts at a stage, and their time limit."""

    retries: int = retries_option()
    timeout_seconds: float | None = option(None, gt=0, hidden=True)
    """Give up on an attempt that takes longer; what is finished is kept."""


def run_stage(name: str, work: Callable[[], Result], *, attempts: Attempts | None = None) -> Result:
    """Run a stage as a task of the current flow run, and return its result.

    Args:
        name: Name of the task on Prefect's pages.
        work: Function without arguments that runs the stage.
        attempts: Number of attempts and their time limit. Default: two retries, no limit.
    """
    attempts = attempts or Attempts()
    for logger in ("prefect.task_runs", "prefect.flow_runs"):
        get_logger(logger).addFilter(_without_expected_traceback)

    @task(
        name=name,
        retries=attempts.retries,
        retry_delay_seconds=_RETRY_DELAYS_SECONDS,
        retry_condition_fn=is_worth_another_attempt,
        timeout_seconds=attempts.timeout_seconds,
        cache_policy=NO_CACHE,
        persist_result=False,
    )
    def attempt() -> Result:
        remember_task_run()
        prepare_environment()
        try:
            return work()
        except Exception as error:
            _release_memory(error)
            raise

    return attempt()


def is_worth_another_attempt(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Return True if another attempt may succeed: a network or a device failed.

    Bad input, a diverged loss, a full disk, a device without enough memory or a mistake in the code
    would only be met again. This is Prefect's retry condition.
    """
    error: object = state.data
    if isinstance(error, EncoreError):
        return isinstance(error.__cause__, _NETWORK_ERRORS)
    torch = sys.modules.get("torch")  # an import takes seconds; without it no error is torch's
    is_out_of_memory = torch is not None and isinstance(error, torch.OutOfMemoryError)
    if stops_the_run(error) or is_out_of_memory:
        return False
    return isinstance(error, (RuntimeError, OSError, httpx.TransportError))


def _without_expected_traceback(record: logging.LogRecord) -> bool:
    """Remove the traceback of an `EncoreError` from Prefect's log: its message says what to do."""
    if record.exc_info and isinstance(record.exc_info[1], EncoreError):
        record.exc_info = None
    return True


def _release_memory(error: Exception) -> None:
    """Free the memory of a failed attempt: Prefect keeps the error, whose frames hold the model."""
    traceback.clear_frames(error.__traceback__)
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
