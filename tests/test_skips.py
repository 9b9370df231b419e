"""Under ENCORE_STRICT_SKIPS=1 a skip for an unknown reason fails; elsewhere it stays a skip."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.golden.command_line import Finished, run_process
from tests.skips import STRICT_VARIABLE

ROOT = Path(__file__).resolve().parents[1]
#: A small suite: two skips that CI may make, an expected failure, and three skips it must not make.
SUITE = {
    "conftest.py": """
from tests.conftest import pytest_make_collect_report, pytest_runtest_makereport
""",
    "test_functions.py": """
import pytest

def test_compose():
    pytest.skip("Docker Compose 2 is not installed")

@pytest.mark.skipif(True, reason="flash attention needs a GPU")
def test_attention():
    pass

@pytest.mark.xfail
def test_expected_failure():
    assert False

@pytest.fixture
def browser():
    pytest.skip("Chromium is not installed")

def test_page(browser):
    pass

@pytest.mark.skipif(True, reason="too slow today")
def test_slow():
    pass
""",
    "test_module.py": "import pytest; pytest.importorskip('no_such_package')",
}


def run_suite(folder: Path, *options: str, strict: str) -> Finished:
    """Run the small suite."""
    for name, source in SUITE.items():
        (folder / name).write_text(source)
    command = (sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", *options)
    environment = {"PYTHONPATH": str(ROOT), STRICT_VARIABLE: strict, "COLUMNS": "200"}
    return run_process(
        *command, f"--rootdir={folder}", folder, cwd=folder, env=os.environ | environment
    )


@pytest.mark.services
def test_in_ci_a_skip_fails_unless_its_reason_is_known(tmp_path):
    # In a worker process, because `make test` runs the suite in two of them.
    options = ("-n", "1", "--continue-on-collection-errors")
    finished = run_suite(tmp_path, *options, strict="1")
    output = finished.out
    assert finished.code == 1, output
    # Skips before a test's body count as errors: in the fixture, by the mark, and of the module.
    assert "2 skipped, 1 xfailed, 3 errors" in output
    for reason in ("Chromium is not installed", "too slow today", "no_such_package"):
        assert re.search(rf"{reason}.*\n.*allows no skip for this reason", output), output


@pytest.mark.services
def test_elsewhere_a_skip_stays_a_skip(tmp_path):
    finished = run_suite(tmp_path, strict="")
    assert finished.code == 0, finished.out
    assert "5 skipped, 1 xfailed" in finished.out
