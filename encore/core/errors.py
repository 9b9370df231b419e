"""Errors that name the thing, the value, what was expected and the next step."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pydantic import ValidationError

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_PERMISSION = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class EncoreError(Exception):
    """Something in the user's world (files, engines, machines) is not as needed.

    The command line prints the message as one line and exits with ``exit_code``.
    """

    exit_code = 1


class InputError(EncoreError, ValueError):
    """Input data or a parameter is malformed: which one, its value, what was expected."""


class StudyIncompleteError(EncoreError):
    """Work finished but something is missing; running the same command again continues."""

    exit_code = 3


class EveryShardError(EncoreError):
    """Every shard of the run would meet this error: the run stops."""


class JudgeUnavailableError(EveryShardError):
    """The judge's model or engine cannot be loaded."""


class GenerationInterruptedError(EncoreError):
    """A generation passed its deadline or was cancelled; its engine must not be reused."""


def stops_the_run(error: object) -> bool:
    """Whether the next shard would fail the same way: no engine, no space, no permission."""
    return isinstance(error, EveryShardError) or (
        isinstance(error, OSError) and error.errno in NO_ROOM | _NO_PERMISSION
    )


def is_worth_retrying(error: object) -> bool:
    """Whether another attempt may succeed: bad input is met again, unless a network was its cause.

    ``ConnectionError`` and ``TimeoutError`` are what networks raise.
    """
    cause = getattr(error, "__cause__", None)
    is_bad_input = isinstance(error, InputError) and not isinstance(
        cause, ConnectionError | TimeoutError
    )
    return not (is_bad_input or stops_the_run(error) or stops_the_run(cause))


def did_you_mean(name: str, possible: Sequence[str]) -> str:
    """The end of an error about an unknown name: names like it, or nothing."""
    near = get_close_matches(name, possible, n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""


class InputProblem(NamedTuple):
    """One problem that pydantic found in its input.

    Attributes:
        location: Keys and list indices that lead to the value; empty for the whole input.
        message: What was expected, e.g. ``Input should be greater than 0``.
        value: The refused value.
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
