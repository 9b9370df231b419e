"""Settings and fixtures of every test: no network, no telemetry, one profile for hypothesis."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from encore.core.settings import prepare_environment
from tests.skips import fail_unknown_skip
from tests.worlds.tiny_judge import make_tiny_judge

ROOT = Path(__file__).resolve().parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"

# Before any test module imports an engine, a hub client or a tracker.
prepare_environment()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Two test processes share the cores; more threads than cores are several times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A console keeps the width that COLUMNS has when it is made; without it, it asks at every line.
os.environ.pop("COLUMNS", None)
importlib.import_module("encore.core.terminal")

# Machines differ in speed, and a failure in CI must be repeatable: no deadline, fixed examples.
settings.register_profile("encore", deadline=None, derandomize=True)
settings.load_profile("encore")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `device` on a machine without an accelerator."""
    device_tests = [test for test in items if test.get_closest_marker("device")]
    if device_tests and not has_accelerator():
        for test in device_tests:
            test.add_marker(pytest.mark.skip(reason="needs an accelerator: nvidia-smi lists none"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a skipped test if CI must not skip it (`tests/skips.py`)."""
    report = yield
    fail_unknown_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a module that is skipped at its import, as `pytest_runtest_makereport` does a test."""
    report = yield
    fail_unknown_skip(report)
    return report


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real data beside the checkout."""
    if not SHARED_DATA.is_dir():
        pytest.skip("real data (../shared/data) is not there")
    return SHARED_DATA


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of the browser for tests that look at a page."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("Chromium is not installed (Debian: apt install chromium)")
    return path


@pytest.fixture(scope="session")
def tiny_judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an untrained judge that answers scores; tests only read it."""
    return make_tiny_judge(tmp_path_factory.mktemp("judges") / "tiny-judge")


@pytest.fixture(scope="module")
def page(chromium: str) -> Iterator[Any]:
    """Open the browser; yield its page."""
    from tests.browser.chromium import browser_page

    with browser_page(chromium) as opened:
        yield opened


def has_accelerator() -> bool:
    """Return True if `nvidia-smi` lists a GPU."""
    command = shutil.which("nvidia-smi")
    return command is not None and subprocess.call([command, "-L"], stdout=subprocess.DEVNULL) == 0
