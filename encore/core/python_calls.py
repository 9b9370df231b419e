"""Errors of public functions, in the words of Python: ``tau=0``, not ``--tau 0``."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from encore.core.errors import EncoreError, InputError, first_problem

_COMMAND = re.compile("(`[^`]*`)")
_OPTION_AND_VALUE = re.compile(r"^--([a-z][a-z0-9-]*) (\S+)(?=:)")
_SCALE = re.compile(r"--scale[= ](-?[0-9.]+),(-?[0-9.]+)")
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
_PYDANTIC = re.compile(r"\bInput should be (?=greater|less)")


def with_python_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with errors that name arguments as Python does."""

    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except ValidationError as error:
            problem = first_problem(error)
            text = f"{problem.path}={problem.value!r}: {problem.message}"
            raise InputError(python_words(text)) from error
        except EncoreError as error:
            if error.args and isinstance(error.args[0], str):
                error.args = (python_words(error.args[0]), *error.args[1:])
            raise

    return called


def python_words(text: str) -> str:
    """Return a message of the command line with its options as arguments.

    Commands within backticks stay: they are for a terminal.

    >>> python_words("--tau 0: Input should be greater than 0")
    'tau=0: expected a value greater than 0'
    """
    parts = _COMMAND.split(text)
    for index in range(0, len(parts), 2):
        part = _SCALE.sub(r"scale=(\1, \2)", parts[index])
        part = _OPTION_AND_VALUE.sub(lambda match: f"{_name(match)}={match[2]}", part)
        part = _PYDANTIC.sub("expected a value ", _OPTION.sub(_name, part))
        parts[index] = part.replace("Input should be ", "expected ")
    return "".join(parts)


def _name(match: re.Match[str]) -> str:
    return match[1].replace("-", "_")
