"""The tutorials of `docs/tutorials/` run from their first cell to the last."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.golden.command_line import run_process

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))


@pytest.mark.services
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(tutorial, tmp_path):
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    run = run_process(sys.executable, str(tutorial), cwd=tmp_path, env=environ)
    assert run.code == 0, run.err
