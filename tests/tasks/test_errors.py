"""Which failures are tried again, and how expected ones are logged."""

from __future__ import annotations

import errno
import logging
import sys
from typing import Any, cast

import pytest
from prefect.client.schemas.objects import TaskRun
from prefect.states import Failed
from prefect.tasks import Task

from encore.errors import (
    EncoreError,
    GenerationInterruptedError,
    InputError,
    JudgeUnavailableError,
)
from encore.rating_driver import meets_every_shard
from tasks.errors import (
    RatingStoppedError,
    _without_expected_traceback,
    is_worth_retrying,
)


def caused_by(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def is_retried(error: Exception) -> bool:
    unused = cast("tuple[Task[..., Any], TaskRun]", (None, None))
    return is_worth_retrying(*unused, Failed(data=error))


@pytest.mark.parametrize(
    "error",
    [
        GenerationInterruptedError("passed its limit"),
        RuntimeError("the device fell off the bus"),
        ConnectionResetError("reset by peer"),
        caused_by(InputError("the hub did not answer"), ConnectionError("refused")),
    ],
    ids=lambda error: f"{type(error).__name__} by {type(error.__cause__).__name__}",
)
def test_what_may_pass_is_tried_again(error: Exception) -> None:
    assert is_retried(error)


@pytest.mark.parametrize(
    "error",
    [
        JudgeUnavailableError("no engine"),
        InputError("no such column"),
        caused_by(InputError("not JSON"), ValueError("line 1")),
        OSError(errno.ENOSPC, "No space left on device"),
        PermissionError(errno.EACCES, "Permission denied"),
        caused_by(EncoreError("writing failed"), OSError(errno.ENOSPC, "No space left")),
        RatingStoppedError("the run was stopped"),
    ],
    ids=lambda error: f"{type(error).__name__} by {type(error.__cause__).__name__}",
)
def test_what_stays_is_not_tried_again(error: Exception) -> None:
    assert not is_retried(error)


def test_a_slow_shard_does_not_condemn_the_others() -> None:
    assert not meets_every_shard(GenerationInterruptedError("passed its limit"))
    assert meets_every_shard(JudgeUnavailableError("no engine"))


@pytest.mark.parametrize(
    ("error", "keeps_traceback"), [(InputError("bad"), False), (RuntimeError("bug"), True)]
)
def test_only_unexpected_errors_are_logged_with_their_traceback(
    error: Exception, keeps_traceback: bool
) -> None:
    try:
        raise error
    except (InputError, RuntimeError):
        record = logging.LogRecord("n", logging.ERROR, "f", 1, "failed", None, sys.exc_info())
    assert _without_expected_traceback(record)
    assert bool(record.exc_info) == keeps_traceback
