"""The local stack divides the GPUs, refuses what cannot work and leaves nothing behind."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from encore.core.errors import EncoreError, InputError
from infra import processes
from infra.prefect_setup import ROOT, prefect_environment
from infra.stack import down, engine_shares, up
from tests.worlds.servers import free_port

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a stack that does not exist yet."""
    monkeypatch.setenv("ENCORE_STACK_DIR", str(tmp_path / "deep" / "stack"))
    return tmp_path / "deep" / "stack"


@pytest.mark.parametrize(("engines", "groups"), [(1, ["0,1,2,3"]), (2, ["0,1", "2,3"])])
def test_gpus_are_divided_into_groups_that_share_none(
    engines: int, groups: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    shares = engine_shares(engines)
    assert list(shares) == [f"engine-{number}" for number in range(engines)]
    assert [share["CUDA_VISIBLE_DEVICES"] for share in shares.values()] == groups


@pytest.mark.parametrize("engines", [3, 8, 0])
def test_a_number_of_engines_that_does_not_divide_is_refused(
    engines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    with pytest.raises(InputError, match=rf"ENGINES={engines} .* 4 GPUs \(0,1,2,3\)"):
        engine_shares(engines)


def test_settings_of_another_server_are_removed_from_the_environment(tmp_path: Path) -> None:
    outer_environ = {"PREFECT_API_KEY": "x", "PREFECT_SERVER_DATABASE_TIMEOUT": "60", "HOME": "/h"}
    environ = prefect_environment(tmp_path / "a" / "b", port=1, environ=outer_environ)
    assert "PREFECT_API_KEY" not in environ
    assert (environ["PREFECT_SERVER_DATABASE_TIMEOUT"], environ["HOME"]) == ("60", "/h")
    assert Path(environ["PREFECT_HOME"]).is_dir()  # its parent did not exist


def test_a_port_in_use_is_refused_by_name(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(InputError, match=rf"port {port} is in use.*MLFLOW_PORT"):
            up(prefect_port=free_port(), mlflow_port=port)
    assert not folder.exists()


def test_a_process_that_does_not_start_is_reported_with_its_last_line(tmp_path: Path) -> None:
    started = processes.start(
        *("engine-0", [sys.executable, "-c", "print('no such pool')"], tmp_path, os.environ),
        cwd=tmp_path,
    )
    with pytest.raises(EncoreError, match="engine-0 ended with 0: no such pool"):
        processes.wait_until(lambda: False, started, timeout_seconds=60)


def test_orphans_of_a_stack_are_stopped_and_other_stacks_are_not(tmp_path: Path) -> None:
    # The parent ends after its child's first line: until a process runs, its environment is empty.
    child = [sys.executable, "-uc", "import time; print(); time.sleep(600)"]
    parent = f"from subprocess import PIPE, Popen; Popen({child!r}, stdout=PIPE).stdout.readline()"
    own_folder, other_folder = tmp_path / "own", tmp_path / "other"
    dead = processes.start(
        "engine-0", [sys.executable, "-c", parent], own_folder, os.environ, cwd=ROOT
    )
    foreign = processes.start("engine-0", SLEEP, other_folder, os.environ, cwd=ROOT)
    dead.process.wait()
    try:
        [orphan] = processes.members(own_folder)
        assert (orphan.name, orphan.is_started) == ("engine-0", False)
        processes.stop([orphan], timeout_seconds=20)
        assert processes.members(own_folder) == []
        assert foreign.process.poll() is None
    finally:
        foreign.process.kill()
        foreign.process.wait()


def test_down_reports_that_no_stack_is_running(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    down()
    assert f"No stack is running in {folder}" in " ".join(capsys.readouterr().err.splitlines())
