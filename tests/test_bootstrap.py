"""The set-up installs once, notices what is missing, and says in one line why it cannot go on."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "infra" / "bootstrap.py"


@pytest.fixture
def bootstrap(tmp_path, monkeypatch) -> ModuleType:
    """The script, working in an empty checkout of its own."""
    spec = importlib.util.spec_from_file_location("bootstrap", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "infra").mkdir()
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "infra" / "constraints.txt").write_text("# why\n\none==1\ntorch==2\n")
    venv = tmp_path / ".venv"
    places = {
        "ROOT": tmp_path,
        "VENV": venv,
        "VENV_PYTHON": venv / "bin" / "python",
        "CONSTRAINTS": tmp_path / "infra" / "constraints.txt",
        "STAMP": venv / "encore-setup.json",
        "LOG": venv / "encore-setup.log",
    }
    for name, path in places.items():
        monkeypatch.setattr(module, name, path)
    return module


def metadata_folder(bootstrap: ModuleType, name: str, *, is_whole: bool = True) -> Path:
    folder = bootstrap.VENV / "lib" / "python3.11" / "site-packages" / f"{name}.dist-info"
    folder.mkdir(parents=True)
    if is_whole:
        (folder / "RECORD").write_text("")
    return folder


@pytest.fixture
def finished(bootstrap) -> ModuleType:
    """As after a set-up that ran to its end and installed one package."""
    metadata_folder(bootstrap, "one-1")
    bootstrap.VENV_PYTHON.parent.mkdir()
    bootstrap.VENV_PYTHON.write_text("")
    stamp = {"inputs": bootstrap.inputs_digest(), "installed": bootstrap.installed()}
    bootstrap.STAMP.write_text(json.dumps(stamp))
    return bootstrap


def test_a_finished_set_up_is_not_repeated(finished, monkeypatch):
    monkeypatch.setattr(finished, "make_venv", lambda: pytest.fail("it began again"))
    finished.set_up()


def test_a_checkout_without_environment_is_not_ready(bootstrap):
    assert not bootstrap.is_ready()


@pytest.mark.parametrize("file", ["pyproject.toml", "infra/constraints.txt"])
def test_another_requirement_is_noticed(finished, file):
    (finished.ROOT / file).write_text("# changed")
    assert not finished.is_ready()


def test_a_package_that_vanished_or_changed_is_noticed(finished):
    (folder,) = finished.VENV.glob("lib/*/*/one-1.dist-info")
    folder.rename(folder.with_name("one-2.dist-info"))
    assert not finished.is_ready()


def test_a_package_of_ones_own_is_no_reason_to_repeat(finished):
    metadata_folder(finished, "mine-1")
    assert finished.is_ready()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_damaged_stamp_means_not_ready(finished, text):
    finished.STAMP.write_text(text)
    assert not finished.is_ready()


def test_a_vanished_interpreter_means_not_ready(finished):
    finished.VENV_PYTHON.unlink()
    assert not finished.is_ready()


def test_the_stamp_is_gone_while_installing_and_stays_gone_after_a_failure(finished, monkeypatch):
    def fail() -> None:
        assert not finished.STAMP.exists()
        raise finished.SetupError("no registry")

    (finished.ROOT / "pyproject.toml").write_text("# changed")
    monkeypatch.setattr(finished, "make_venv", lambda: None)
    monkeypatch.setattr(finished, "install", fail)
    with pytest.raises(finished.SetupError):
        finished.set_up()
    assert not finished.is_ready()


def test_a_package_cut_off_in_mid_installation_is_installed_again(bootstrap):
    whole = metadata_folder(bootstrap, "one-1")
    half = metadata_folder(bootstrap, "two-2", is_whole=False)
    bootstrap.drop_half_installed()
    assert whole.exists()
    assert not half.exists()


def test_a_full_disk_is_said_before_anything_is_made(bootstrap, monkeypatch):
    monkeypatch.setattr(bootstrap, "NEEDED_GIB", 10**9)
    with pytest.raises(bootstrap.SetupError, match="1000000000 are needed"):
        bootstrap.make_venv()
    assert not bootstrap.VENV.exists()


def test_a_gpu_engine_that_somebody_installed_is_left_alone(bootstrap, monkeypatch):
    calls = []
    monkeypatch.setattr(bootstrap, "pip", lambda what, *arguments: calls.append(arguments))
    metadata_folder(bootstrap, "vllm-0.32.0")
    bootstrap.install()
    (requirements,) = [words[-1] for words in calls if "-r" in words]
    assert Path(requirements).read_text().splitlines() == ["# why", "", "one==1"]
    assert not [words for words in calls if bootstrap.TORCH_CPU in words]


def test_torch_comes_from_pytorchs_index_only_where_pip_finds_it_nowhere_else(
    bootstrap, monkeypatch
):
    calls = []

    def pip(what: str, *arguments: str) -> None:
        calls.append(arguments)
        if "--extra-index-url" not in arguments:
            raise bootstrap.SetupError("no such package")

    monkeypatch.setattr(bootstrap, "pip", pip)
    bootstrap.install_cpu_torch()
    assert [("--extra-index-url" in words) for words in calls] == [False, True]
    # Asking for the local version is what keeps PyPI's CUDA build, and its gigabytes, out.
    assert {words[-1] for words in calls} == {"torch==2.13.0+cpu"}


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "disk is full"),
        (
            "WARNING: Retrying after connection broken by 'X'\nERROR: No matching",
            "registry answers",
        ),
        ("ERROR: No matching distribution found for one==1", "no such package"),
        ("something new", "pip failed"),
    ],
)
def test_the_cause_of_a_failure_is_one_line(bootstrap, output, cause):
    line = bootstrap.cause_of(output)
    assert cause in line
    assert "\n" not in line
    assert str(bootstrap.LOG) in line


def test_a_python_too_old_is_named_with_what_to_do(bootstrap, monkeypatch):
    monkeypatch.setattr(bootstrap, "OLDEST_PYTHON", (99, 0))
    monkeypatch.setattr(bootstrap, "OTHER_PYTHONS", ("no-such-python",))
    with pytest.raises(bootstrap.SetupError, match="make PYTHON="):
        bootstrap.use_new_enough_python()


def test_an_interpreter_without_venv_is_named(bootstrap, monkeypatch):
    monkeypatch.setattr(bootstrap.sys, "executable", "/bin/false")
    monkeypatch.setattr(bootstrap, "NEEDED_GIB", 0)
    with pytest.raises(bootstrap.SetupError, match="apt install python3-venv"):
        bootstrap.make_venv()


def test_pips_failure_reaches_the_log_and_the_error(bootstrap, monkeypatch):
    monkeypatch.setattr(bootstrap, "VENV_PYTHON", Path(sys.executable))
    bootstrap.VENV.mkdir()
    with pytest.raises(bootstrap.SetupError, match="no such package"):
        bootstrap.pip("nothing", "--no-index", "--no-deps", "no-such-package-anywhere==1")
    assert "no-such-package-anywhere" in bootstrap.LOG.read_text()
