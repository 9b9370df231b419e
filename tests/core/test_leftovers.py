"""What killed processes have left is removed by the next call; what living ones write is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from encore.core import leftovers
from encore.core.files import atomic_folder, atomic_path, atomic_write_bytes
from encore.core.leftovers import is_left_behind, scratch_folder, unique_suffix
from tests.worlds.servers import wait_until

TAG = leftovers.this_machine()
DAY = 24 * 3600


def killed_while(code: str, folder: Path) -> int:
    """Kill code that writes in a folder while it does; return the id of its process."""
    ready = folder.with_name("ready")
    ready.unlink(missing_ok=True)
    program = f"""
import time
from pathlib import Path
from encore.core.files import atomic_folder, atomic_path
from encore.core.leftovers import scratch_folder
folder = Path({str(folder)!r})
with {code} as path:
    if path.is_dir():
        (path / "part").write_text("half")
    else:
        path.write_text("half")
    Path({str(ready)!r}).touch()
    time.sleep(600)
"""
    environ = {**os.environ, "TMPDIR": str(folder)}
    process = subprocess.Popen([sys.executable, "-c", program], env=environ)
    wait_until(ready.exists, seconds=60, pause_seconds=0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return process.pid


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


@pytest.mark.parametrize("code", ["atomic_path(folder / 'a.json')", "atomic_folder(folder / 'a')"])
def test_the_next_write_in_a_folder_removes_what_a_killed_one_left(code, folder):
    pid = killed_while(code, folder)
    [leftover] = folder.iterdir()
    assert f".tmp-{pid}-{TAG}" in leftover.name
    atomic_write_bytes(folder / "b.json", b"whole")
    assert [path.name for path in folder.iterdir()] == ["b.json"]


def test_the_next_scratch_folder_removes_that_of_a_killed_process(folder, monkeypatch):
    killed_while("scratch_folder('encore-duckdb-')", folder)
    assert len([*folder.iterdir()]) == 1
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with scratch_folder("encore-duckdb-") as newest, scratch_folder("encore-duckdb-") as second:
        assert {*folder.iterdir()} == {newest, second}  # that of a living process stays
        assert newest.stat().st_mode & 0o777 == 0o700
    assert not [*folder.iterdir()]


def test_what_a_living_process_writes_stays(folder):
    with atomic_path(folder / "a.json") as first, atomic_folder(folder / "b") as second:
        first.touch()
        leftovers._seen_folders.clear()
        atomic_write_bytes(folder / "c.json", b"whole")
        assert first.exists()
        assert second.exists()
    assert {path.name for path in folder.iterdir()} == {"a.json", "b", "c.json"}


def made(folder: Path, name: str, *, days_old: float = 0) -> Path:
    path = folder / name
    path.touch()
    when = time.time() - days_old * DAY
    os.utime(path, (when, when))
    return path


@pytest.mark.parametrize(
    ("name", "days_old", "is_left"),
    [
        # Of another machine: the process may live, unless it is old.
        (".a.json.tmp-99999999-0123456789abcdef", 0, False),
        (".a.json.tmp-99999999-0123456789abcdef", 1.1, True),
        (".a.json.tmp-99999999-0123456789abcdef", 0.9, False),
        # Of this machine: the process is dead, or lives, or another one has its id since.
        (f".a.json.tmp-99999999-{TAG}01234567", 0, True),
        (f".a.json.tmp-PID-{TAG}01234567", 0, False),
        (f".a.json.tmp-PID-{TAG}01234567", 1.1, True),
        # A folder that was moved aside and is the only copy.
        (f".a.old-99999999-{TAG}01234567", 2, False),
        # Other people's files.
        ("a.json", 99, False),
        (".a.json.tmp-1", 99, False),
        (".gitignore", 99, False),
    ],
)
def test_a_file_is_left_behind_by_its_process_its_machine_and_its_age(
    name, days_old, is_left, folder
):
    path = made(folder, name.replace("PID", str(os.getpid())), days_old=days_old)
    assert is_left_behind(path) == is_left


def test_a_folder_that_was_replaced_is_removed_when_the_new_one_is_there(folder):
    old = made(folder, f".a.old-99999999-{TAG}01234567")
    assert not is_left_behind(old)
    (folder / "a").mkdir()
    assert is_left_behind(old)


def test_scratch_folders_of_an_earlier_version_are_removed_after_a_day(folder, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    young, old = folder / "encore-duckdb-abcd1234", folder / "encore-duckdb-efgh5678"
    for path in (young, old):
        path.mkdir()
    os.utime(old, (0, 0))
    link = folder / "encore-duckdb-link"
    link.symlink_to(young)
    os.utime(link, (0, 0), follow_symlinks=False)
    with scratch_folder("encore-duckdb-"):
        assert young.exists()
        assert not old.exists()
        assert not link.is_symlink()  # the link alone is removed


def test_names_differ():
    assert unique_suffix() != unique_suffix()
