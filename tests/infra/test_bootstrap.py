"""The set-up installs once, notices missing packages, and gives its error in one line."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.infra.programs import write_program

SCRIPT = Path(__file__).resolve().parents[2] / "infra" / "bootstrap.py"


@pytest.fixture
def bootstrap() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path) -> Path:
    """Write a checkout with two pins and without an environment."""
    (tmp_path / "infra").mkdir()
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "infra" / "constraints.txt").write_text("# why\none==1\ntorch==2\n")
    return tmp_path


def add_package(checkout: Path, name: str, *, is_whole: bool = True) -> Path:
    folder = checkout / ".venv/lib/python3.11/site-packages" / f"{name}.dist-info"
    folder.mkdir(parents=True)
    if is_whole:
        (folder / "RECORD").write_text("")
    return folder


@pytest.fixture
def finished(bootstrap, checkout, monkeypatch) -> Path:
    """Return the checkout after a complete set-up that installed one package."""
    monkeypatch.setattr(bootstrap, "make_venv", lambda _: None)
    monkeypatch.setattr(bootstrap, "install", lambda _: None)
    add_package(checkout, "one-1")
    (checkout / ".venv" / "bin").mkdir()
    (checkout / ".venv" / "bin" / "python").write_text("")
    assert not bootstrap.is_ready(checkout)
    bootstrap.set_up(checkout)
    return checkout


def test_a_finished_set_up_is_not_repeated(bootstrap, finished, monkeypatch):
    monkeypatch.setattr(bootstrap, "make_venv", lambda _: pytest.fail("the set-up ran again"))
    add_package(finished, "mine-1")  # a package that the user installed
    assert bootstrap.main(finished) == 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda root: (root / "pyproject.toml").write_text("# changed"),
        lambda root: (root / "infra" / "constraints.txt").write_text("# changed"),
        lambda root: next(root.glob(".venv/lib/*/*/one-1.dist-info")).rename(root / "gone"),
        lambda root: (root / ".venv" / "bin" / "python").unlink(),
        lambda root: (root / ".venv" / "encore-setup.json").write_text("{}"),
        lambda root: (root / ".venv" / "encore-setup.json").write_text("[]"),
    ],
    ids=["requirement", "pin", "package", "interpreter", "no stamp", "damaged stamp"],
)
def test_a_changed_or_missing_file_makes_the_set_up_run_again(bootstrap, finished, spoil):
    assert bootstrap.is_ready(finished)
    spoil(finished)
    assert not bootstrap.is_ready(finished)


def test_a_package_cut_off_in_mid_installation_is_forgotten(bootstrap, finished):
    half = add_package(finished, "two-2", is_whole=False)
    bootstrap.set_up(finished)
    assert [path.name for path in bootstrap.installed(finished)] == ["one-1.dist-info"]
    assert not half.exists()


@pytest.fixture
def calls(bootstrap, monkeypatch) -> list[tuple[str, ...]]:
    """Record the arguments of each installation instead of installing."""
    calls: list[tuple[str, ...]] = []

    def record(root: Path, title: str, *arguments: str) -> None:
        calls.append(arguments)

    monkeypatch.setattr(bootstrap, "package", record)
    monkeypatch.setattr(bootstrap.sys, "platform", "linux")
    monkeypatch.setattr(bootstrap.platform, "machine", lambda: "x86_64")
    return calls


def test_a_gpu_engine_that_somebody_installed_is_left_alone(bootstrap, checkout, calls):
    add_package(checkout, "vllm-0.32.0")
    bootstrap.install(checkout)
    assert [arguments[-2] for arguments in calls] == ["-r", "-e"]
    assert Path(calls[0][-1]).read_text().splitlines() == ["# why", "one==1"]


def test_pytorchs_index_is_used_only_if_torch_is_found_nowhere_else(
    bootstrap, checkout, calls, monkeypatch
):
    def package(root: Path, title: str, *arguments: str) -> None:
        calls.append(arguments)
        if arguments[-1] == bootstrap.TORCH_CPU and "--extra-index-url" not in arguments:
            raise bootstrap.SetupError("no such package")

    (checkout / ".venv").mkdir()
    monkeypatch.setattr(bootstrap, "package", package)
    bootstrap.install(checkout)
    # Asking for the local version is what keeps PyPI's CUDA build, and its gigabytes, out.
    assert [arguments[-1] for arguments in calls[:2]] == ["torch==2.13.0+cpu"] * 2
    has_index = ["--extra-index-url" in arguments for arguments in calls]
    assert has_index == [False, True, False, False]


@pytest.mark.parametrize("has_uv", [False, True], ids=["pip", "uv, then pip"])
def test_a_failed_installation_is_one_line_and_its_output_a_log(
    bootstrap, checkout, monkeypatch, has_uv
):
    uv = write_program(checkout / "uv", 'echo "uv $*"\nexit 1')
    which = shutil.which
    uv_path = {"uv": str(uv) if has_uv else None}
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)  # the user's settings would make pip install
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: uv_path.get(name, which(name)))
    write_program(checkout / ".venv" / "bin" / "python", f'exec {sys.executable} "$@"')
    arguments = ("--no-index", "--no-deps", "no-such-package-anywhere==1")
    with pytest.raises(bootstrap.SetupError, match=r"nothing: ERROR: No matching .*setup\.log"):
        bootstrap.package(checkout, "nothing", *arguments)
    log = (checkout / ".venv" / "encore-setup.log").read_text()
    assert ("uv pip install --python" in log) == has_uv
