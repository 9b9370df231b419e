"""Errors of ENCORE: each message names the value, what was expected and the next step."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pydantic import ValidationError

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_PERMISSION = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class EncoreError(Exception):
    """An error of the user's files, engines or machines.

    The command line prints the message as one line and exits with ``exit_code``.
    """

    exit_code = 1


class InputError(EncoreError, ValueError):
    """An error of input data or of a parameter: its name, its value, what was expected."""


class StudyIncompleteError(EncoreError):
    """Work ended with parts missing. Running the same command again continues it."""

    exit_code = 3


class CheckFailedError(EncoreError):
    """A check ended, and what it asked for is not shown: by these data, or by its record."""

    exit_code = 4


class EveryShardError(EncoreError):
    """An error that every shard of the run would meet: the run stops."""


class JudgeUnavailableError(EveryShardError):
    """The judge's model or engine cannot be loaded or reached."""


class GenerationInterruptedError(EncoreError):
    """A generation passed its deadline or was cancelled. Its engine must not be used again."""


class ShardClosedError(EncoreError):
    """The run's budget is used up within a shard. What was answered is kept for a later call."""


def stops_the_run(error: object) -> bool:
    """Return True if every shard would fail the same way: no engine, no space, no permission."""
    return isinstance(error, EveryShardError) or (
        isinstance(error, OSError) and error.errno in NO_ROOM | _NO_PERMISSION
    )


#: Errors of engines whose worker processes ended: vLLM, Ray. Their packages are not imported here.
_DEAD_ENGINE_ERRORS = frozenset(
    {
        *("EngineDeadError", "AsyncEngineDeadError", "EngineCoreDeadError"),
        *("ActorDiedError", "RayActorError", "WorkerCrashedError"),
    }
)
#: Errors after which a process cannot use its GPU any more.
_DEAD_DEVICE = re.compile(
    r"(CUDA|HIP|NCCL) error|device-side assert|illegal memory access|uncorrectable ECC"
    r"|CU(BLAS|DNN)_STATUS_(?!NOT_SUPPORTED)",
    re.IGNORECASE,
)


class EnginesDiedError(EveryShardError):
    """The model's engine died again and again. What was finished is kept."""


def is_engine_dead(error: BaseException | None) -> bool:
    """Return True if an error, or one behind it, says that the process's engine or GPU is lost.

    The work can be done by another engine, so it has not failed.
    """
    while error is not None:
        is_our_own = isinstance(error, EncoreError)
        if {kind.__name__ for kind in type(error).__mro__} & _DEAD_ENGINE_ERRORS:
            return True
        if isinstance(error, RuntimeError) and not is_our_own and _DEAD_DEVICE.search(str(error)):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def is_worth_retrying(error: object) -> bool:
    """Return True if another attempt may succeed.

    Bad input stays bad, unless a network was the cause: ``ConnectionError`` or ``TimeoutError``.
    """
    cause = getattr(error, "__cause__", None)
    is_bad_input = isinstance(error, InputError) and not isinstance(
        cause, ConnectionError | TimeoutError
    )
    return not (is_bad_input or stops_the_run(error) or stops_the_run(cause))


def did_you_mean(name: str, possible: Sequence[str]) -> str:
    """Return the end of an error about an unknown name: similar names, or an empty text."""
    similar = get_close_matches(name, possible, n=3)
    return f"; did you mean {' or '.join(similar)}?" if similar else ""


class InputProblem(NamedTuple):
    """One problem that pydantic found in its input.

    Attributes:
        location: Keys and list indices that lead to the value; empty for the whole input.
        message: What was expected, e.g. ``Input should be greater than 0``.
        value: The value that was refused.
        kind: The name that pydantic gives such problems, e.g. ``missing``.
    """

    location: tuple[int | str, ...]
    message: str
    value: Any
    kind: str

    @property
    def path(self) -> str:
        """Return the location as text, e.g. ``rules.3.title``."""
        return ".".join(map(str, self.location))


def first_problem(error: ValidationError) -> InputProblem:
    """Return the first problem of a pydantic error."""
    problem = error.errors(include_url=False)[0]
    message = problem["msg"].removeprefix("Value error, ")
    return InputProblem(problem["loc"], message, problem["input"], problem["type"])
