"""Run the command line as a shell does: `python -m encore.cli ARGUMENTS`.

`encore` runs that module in this process, which saves the imports of every call; `encore_process`
starts a process for it. Both use nothing of the program but the module's name.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any
from unittest import mock

ENVIRONMENT = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Result of a finished command: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Parse the output of a command that was called with --json; its exit code must be 0."""
        assert self.code == 0, f"exit code {self.code}\n{self.err}"
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """Return the only line of error, without its prefix."""
        [line] = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert "Traceback" not in self.err
        return line.removeprefix("error: ")


def encore(*arguments: object) -> Finished:
    """Run a command in this process; any exception but SystemExit fails the test."""
    out, err = StringIO(), StringIO()
    exit_code: Any = 0
    with (
        mock.patch.object(sys, "argv", ["encore", *map(str, arguments)]),
        mock.patch.dict(os.environ, ENVIRONMENT),
        warnings.catch_warnings(),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        warnings.simplefilter("default")
        try:
            runpy.run_module("encore.cli", run_name="__main__")
        except SystemExit as exit_error:
            exit_code = 0 if exit_error.code is None else exit_error.code
    assert isinstance(exit_code, int), exit_code
    return Finished(code=exit_code, out=out.getvalue(), err=err.getvalue())


def encore_process(*arguments: object) -> Finished:
    """Run a command in a new process."""
    environment = {**os.environ, **ENVIRONMENT}
    return run_process(sys.executable, "-m", "encore.cli", *arguments, env=environment)


def run_process(*command: object, **options: Any) -> Finished:
    """Run any program, with options of `subprocess.run`; its exit code may be an error's."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, **options
    )
    return Finished(code=done.returncode, out=done.stdout, err=done.stderr)
