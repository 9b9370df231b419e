"""A command as a user calls it: wide output, and any error one line."""

from __future__ import annotations

import contextlib
import io
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from cyclopts import CycloptsError

from encore.errors import EncoreError
from encore.options import STDIN, new_app


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a call wrote and how it ended."""

    stdout: str
    stderr: str
    exit_code: int
    exception: BaseException | None

    @property
    def output(self) -> str:
        """Both streams, one after the other."""
        return self.stdout + self.stderr


class Command:
    """One command of the program, by itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> Result:
        """What it does with these arguments."""
        tokens = [STDIN if one == "-" else str(one) for one in arguments]
        return _call(self._function, tokens)

    def error_of(self, *arguments: object) -> EncoreError:
        """The error it ends with."""
        error = self(*arguments).exception
        assert isinstance(error, EncoreError), error
        assert "\n" not in str(error)
        return error


def _call(function: Callable[..., Any], tokens: list[str]) -> Result:
    app = new_app("encore", help="")
    app.default(function)
    out, err = io.StringIO(), io.StringIO()
    code, ended = 0, None
    with (
        patch.dict("os.environ", {"COLUMNS": "200"}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            app(tokens, exit_on_error=False, print_error=False)
        except CycloptsError as error:
            code, ended = 2, error
            err.write(str(error))
        except EncoreError as error:
            code, ended = error.exit_code, error
        except SystemExit as error:
            code = int(error.code or 0)
        except Exception as error:  # noqa: BLE001  # a defect: the test sees it in the result
            code, ended = 1, error
            traceback.print_exc()
    return Result(stdout=out.getvalue(), stderr=err.getvalue(), exit_code=code, exception=ended)
