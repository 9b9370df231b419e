"""Which errors a retry cannot mend, and how expected ones read in Prefect's logs."""

from __future__ import annotations

import logging
from typing import Any

import httpx
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_logger
from prefect.tasks import Task

from encore.errors import EncoreError, InputError
from encore.rating_driver import meets_every_shard

_NETWORK_ERRORS = (ConnectionError, TimeoutError, httpx.TransportError)
_PREFECT_LOGGERS = ("prefect.task_runs", "prefect.flow_runs")


class RatingStoppedError(EncoreError):
    """The flow run ended or was interrupted while this shard waited for its turn."""


def is_worth_retrying(_task: Task[..., Any], _task_run: TaskRun, state: State[Any]) -> bool:
    """Prefect's retry condition: False for what another attempt would only repeat."""
    error: object = state.data
    if isinstance(error, InputError):
        return isinstance(error.__cause__, _NETWORK_ERRORS)
    if isinstance(error, BaseException) and meets_every_shard(error.__cause__):
        return False
    return not (isinstance(error, RatingStoppedError) or meets_every_shard(error))


def log_expected_errors_in_one_line() -> None:
    """Let Prefect log an `EncoreError` without its traceback: its message says what to do."""
    for name in _PREFECT_LOGGERS:
        get_logger(name).addFilter(_without_expected_traceback)


def _without_expected_traceback(record: logging.LogRecord) -> bool:
    if record.exc_info and isinstance(record.exc_info[1], EncoreError):
        record.exc_info = None
    return True
