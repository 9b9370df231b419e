"""Run one command as a user calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from encore.cli.app import COMMANDS
from tests.golden.command_line import encore


@dataclass(frozen=True, slots=True)
class Result:
    """Exit code and output of a call."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Return stdout, then stderr."""
        return self.stdout + self.stderr

    @property
    def error(self) -> str:
        """Return the only line of error, without its prefix."""
        [line] = [line for line in self.stderr.splitlines() if line.startswith("error: ")]
        return line.removeprefix("error: ")


class Command:
    """One command of the program, by its function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        names = {name.replace(" ", "_").replace("-", "_"): name for name in COMMANDS}
        self._name = names[function.__name__].split()

    def __call__(self, *arguments: object) -> Result:
        """Run the command with these arguments."""
        finished = encore(*self._name, *arguments)
        return Result(finished.code, finished.out, finished.err)

    def error_of(self, *arguments: object) -> str:
        """Run the command and return its error."""
        return self(*arguments).error
