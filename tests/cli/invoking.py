"""One command as a user calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from encore.cli.app import COMMANDS
from tests.golden.command_line import encore


@dataclass(frozen=True, slots=True)
class Result:
    """How a call ended and what it wrote."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Both streams, one after the other."""
        return self.stdout + self.stderr

    @property
    def error(self) -> str:
        """The one line that says what is wrong."""
        [line] = [line for line in self.stderr.splitlines() if line.startswith("error: ")]
        return line.removeprefix("error: ")


class Command:
    """One command of the program, by its function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        name = function.__name__
        [self._words] = [
            one.split() for one in COMMANDS if one.replace(" ", "_").replace("-", "_") == name
        ]

    def __call__(self, *arguments: object) -> Result:
        """What it does with these arguments."""
        done = encore(*self._words, *arguments)
        return Result(done.code, done.out, done.err)

    def error_of(self, *arguments: object) -> str:
        """The error that it ends with."""
        return self(*arguments).error
