"""What every test may rely on: no network, no telemetry, and reasons where something is missing."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import settings

from encore.core.settings import prepare_environment

ROOT = Path(__file__).resolve().parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"

# Before any test module imports an engine, a hub client or a tracker.
prepare_environment()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Two test processes share the cores; more threads than cores are several times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A console keeps the width that COLUMNS has at its making; without one it asks at every line.
os.environ.pop("COLUMNS", None)
importlib.import_module("encore.core.terminal")

# Machines differ in speed, and a failure in CI must be a failure at home: no deadline, no chance.
settings.register_profile("encore", deadline=None, derandomize=True)
settings.load_profile("encore")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs an accelerator where there is none."""
    marked = [item for item in items if item.get_closest_marker("device")]
    if marked and not _has_accelerator():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an accelerator: nvidia-smi lists none"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the checkout."""
    if not SHARED_DATA.is_dir():
        pytest.skip("real data (../shared/data) is not there")
    return SHARED_DATA


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a browser for tests that look at a page."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None and os.environ.get("ENCORE_REQUIRE_BROWSER") == "1":
        pytest.fail("Chromium is required here and not installed (Debian: apt install chromium)")
    if path is None:
        pytest.skip("Chromium is not installed; make test-full requires it")
    return path


def _has_accelerator() -> bool:
    command = shutil.which("nvidia-smi")
    return command is not None and subprocess.call([command, "-L"], stdout=subprocess.DEVNULL) == 0
