"""Settings and fixtures of every test: no network, no telemetry, one profile for hypothesis."""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from encore.core import terminal
from encore.core.settings import prepare_environment
from tests.browser.chromium import Page, browser_page
from tests.skips import fail_unknown_skip
from tests.worlds.built_once import one_certificate
from tests.worlds.tiny_judge import make_tiny_judge

ROOT = Path(__file__).resolve().parent.parent
#: Files whose tests of services take longest: each keeps one process of several busy for minutes.
LONG_FILES = ("test_faults.py", "test_big_run.py", "test_server_calls.py", "test_running_stack.py")
FLOWS = "tests/flows/"
#: The choice of `make test`, in pyproject.toml.
DEFAULT_TESTS = "not full and not services"
#: The mark of a file all of whose tests are services.
ALL_SERVICES = re.compile(r"^pytestmark = .*mark\.services", re.M)
SHARED_DATA = ROOT.parent / "shared" / "data"

# Before any test module imports an engine, a hub client or a tracker.
prepare_environment()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Two test processes share the cores; more threads than cores are several times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Every engine fills its cache with zeros when it starts.
os.environ.setdefault("ENCORE_CPU_KV_CACHE_GIB", "1")

# Each HTTP client of each process reads what it trusts: of 130 certificates in 40 ms, of one in 1.
# No test calls another machine; only pip does, in test-full, with the certificates of its user.
_users_certificates = os.environ.get("SSL_CERT_FILE")
_certificate = str(one_certificate())
if _users_certificates != _certificate:
    os.environ["SSL_CERT_FILE"] = _certificate
    if _users_certificates:
        os.environ.setdefault("PIP_CERT", _users_certificates)

# A console keeps the width that COLUMNS has when it is made; without it, it asks at every line.
# The imports above may have made the consoles already.
os.environ.pop("COLUMNS", None)
for _console in (terminal.console, terminal.out):
    _console._width = None

# Machines differ in speed, and a failure in CI must be repeatable: no deadline, fixed examples.
settings.register_profile("encore", deadline=None, derandomize=True)
settings.load_profile("encore")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file or folder without a selected test: imports cost a third of the tests' time."""
    is_selected = {
        "services and not full": lambda text: "mark.services" in text,
        DEFAULT_TESTS: lambda text: not ALL_SERVICES.search(text),
    }.get(config.option.markexpr)
    if is_selected is None or (collection_path.is_file() and collection_path.suffix != ".py"):
        return None
    files = [collection_path] if collection_path.is_file() else collection_path.rglob("test_*.py")
    return None if any(is_selected(file.read_text("utf-8")) for file in files) else True


class _ByFile(LoadFileScheduling):
    """One process has all tests of a file, and one all flows: they share a Prefect server."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return FLOWS if file.startswith(FLOWS) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _ByFile | None:
    """Choose which process has which tests."""
    return _ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long tests first, and skip tests marked `device` on a machine without an accelerator."""
    position = {name: number for number, name in enumerate(LONG_FILES)}
    items.sort(key=lambda test: position.get(test.path.name, len(LONG_FILES)))
    device_tests = [test for test in items if test.get_closest_marker("device")]
    if device_tests and not has_accelerator():
        for test in device_tests:
            test.add_marker(pytest.mark.skip(reason="needs an accelerator: nvidia-smi lists none"))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how to run the slower tests: a file may have no others."""
    if config.option.markexpr == DEFAULT_TESTS:
        terminalreporter.write_line("slower tests are left out; -m 'not full' runs them too")


def pytest_collection_finish() -> None:
    """Leave the imported packages, a million objects, out of every garbage collection."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the packages end as usual: DuckDB complains of objects that outlive it."""
    gc.unfreeze()


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
def page() -> Iterator[Page]:
    """Start Chromium, for all tests of this process that look at a page, and yield its tab."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("Chromium is not installed (Debian: apt install chromium)")
    with browser_page(path) as opened:
        yield opened


@pytest.fixture(scope="session")
def hostile_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a study with hostile texts and three rating runs; tests only read it."""
    from tests.tables.browse.studies import write_hostile_study

    return write_hostile_study(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="session")
def mlflow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty MLflow store to be copied."""
    from tests.tasks.tracking.mlflow_store import new_template

    return new_template(tmp_path_factory.mktemp("mlflow"))


@pytest.fixture(scope="session")
def tiny_judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an untrained judge that answers scores; tests only read it."""
    return make_tiny_judge(tmp_path_factory.mktemp("judges") / "tiny-judge")


def has_accelerator() -> bool:
    """Return True if `nvidia-smi` lists a GPU."""
    command = shutil.which("nvidia-smi")
    return command is not None and subprocess.call([command, "-L"], stdout=subprocess.DEVNULL) == 0
