"""The command line as a shell sees it: `python -m encore.cli ARGUMENTS`.

`encore` runs that module in this process, which saves the imports of every call; `encore_process`
in one of its own. Nothing of the program is known here but the module's name.
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
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed with --json."""
        assert self.code == 0, f"exit code {self.code}\n{self.err}"
        return json.loads(self.out)


def encore(*arguments: object) -> Finished:
    """Run the command in this process; an exception that is no exit fails the test."""
    out, err = StringIO(), StringIO()
    code: Any = 0
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
        except SystemExit as end:
            code = 0 if end.code is None else end.code
    assert isinstance(code, int), code
    return Finished(code=code, out=out.getvalue(), err=err.getvalue())


def encore_process(*arguments: object) -> Finished:
    """Run the command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "encore.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **ENVIRONMENT},
    )
    return Finished(code=done.returncode, out=done.stdout, err=done.stderr)
