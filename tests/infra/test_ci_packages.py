"""`.ci/packages` installs missing packages, and reports clearly when it cannot."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.infra.programs import BASH, write_program

PACKAGES = Path(__file__).resolve().parents[2] / ".ci" / "packages"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a folder of programs, the only one on PATH: all that are needed but a browser."""
    folder = tmp_path / "bin"
    for name in ("initdb", "ip"):
        write_program(folder / name, "exit 1")
    return folder


def run_packages(programs: Path) -> subprocess.CompletedProcess[str]:
    """Run the script; only the given programs exist for it."""
    command = [BASH, str(PACKAGES)]
    environment = {**os.environ, "PATH": str(programs)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_only_the_missing_package_is_installed(programs: Path, tmp_path: Path) -> None:
    write_program(programs / "id", "echo 0")
    write_program(programs / "apt-get", f'echo "$*" >> {tmp_path}/calls')
    assert run_packages(programs).returncode == 0
    update, install = (tmp_path / "calls").read_text().splitlines()
    assert update.startswith("update")
    assert install.endswith("--no-install-recommends chromium fonts-liberation")


def test_nothing_is_installed_where_nothing_is_missing(programs: Path) -> None:
    write_program(programs / "chromium-browser", "exit 1")
    done = run_packages(programs)  # without apt-get
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("scripts", "message"),
    [
        ({}, "No apt-get here."),
        ({"id": "echo 1000", "apt-get": "exit 0"}, "needs root, and there is no sudo."),
        ({"id": "echo 0", "apt-get": '[ "$1" = update ]'}, "apt-get install failed."),
        ({"id": "echo 1000", "apt-get": "exit 0", "sudo": "exit 1"}, "apt-get update failed."),
    ],
    ids=["no apt-get", "no root", "unknown package", "sudo asks for a password"],
)
def test_a_failed_installation_names_its_reason_and_the_packages(
    programs: Path, scripts: dict[str, str], message: str
) -> None:
    for name, script in scripts.items():
        write_program(programs / name, script)
    done = run_packages(programs)
    assert done.returncode == 1
    assert message in done.stderr
    assert "chromium" in done.stderr
