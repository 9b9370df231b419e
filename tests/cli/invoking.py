"""A command as a user calls it: wide output, and any error one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from click.testing import Result
from typer import Typer
from typer.testing import CliRunner

from encore.errors import EncoreError


class Command:
    """One command of the program, by itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._app = Typer()
        self._app.command()(function)

    def __call__(self, *arguments: object) -> Result:
        """What it does with these arguments."""
        runner = CliRunner(env={"COLUMNS": "200"})
        return runner.invoke(self._app, [str(one) for one in arguments])

    def error_of(self, *arguments: object) -> EncoreError:
        """The error it ends with."""
        error = self(*arguments).exception
        assert isinstance(error, EncoreError)
        assert "\n" not in str(error)
        return error
