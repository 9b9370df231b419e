"""Locks keep two processes apart where the file system has them; elsewhere nobody waits."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys

import pytest

from encore.core.errors import EncoreError
from encore.core.file_lock import file_lock, lock_descriptor
from encore.data.study import changed_study, open_study
from encore.runs.worker import shard_lock
from tests.worlds.studies import create_study

#: What may stand in place of a lock: id of a process, and a host that is gone.
MARKER = "4242\nnode-that-died\n"


def without_locks(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_a_lock_is_busy_for_others_until_its_holder_is_done(tmp_path):
    path = tmp_path / "lock"
    with file_lock(path) as first, file_lock(path, timeout_seconds=0) as second:
        assert (first, second) == ("held", "busy")
    with file_lock(path, timeout_seconds=0) as third:
        assert third == "held"


def test_a_locked_folder_is_busy_for_others(tmp_path):
    first, second = os.open(tmp_path, os.O_RDONLY), os.open(tmp_path, os.O_RDONLY)
    assert lock_descriptor(first, folder=tmp_path) == "held"
    assert lock_descriptor(second, folder=tmp_path) == "busy"
    os.close(first)
    assert lock_descriptor(second, folder=tmp_path) == "held"
    os.close(second)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_without_locks_nobody_waits_and_one_warning_says_so(tmp_path, monkeypatch, caplog, number):
    path = tmp_path / "lock"
    path.write_text(MARKER)
    without_locks(monkeypatch, number)
    for _ in range(2):
        with file_lock(path) as first, file_lock(path) as second:
            assert (first, second) == ("unsupported", "unsupported")
    assert caplog.text.count("the file system has no locks") == 1
    assert str(tmp_path) in caplog.text


def test_another_error_of_a_lock_is_an_error(tmp_path, monkeypatch):
    without_locks(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output"), file_lock(tmp_path / "lock"):
        pass


def test_studies_and_shards_work_without_locks(tmp_path, monkeypatch):
    create_study(tmp_path / "study")
    without_locks(monkeypatch, errno.ENOSYS)
    with changed_study(tmp_path / "study") as change:
        (change.folder / "note").touch()
    assert open_study(tmp_path / "study")
    (tmp_path / "run" / "locks").mkdir(parents=True)
    (tmp_path / "run" / "locks" / "shard-00001.lock").write_text(MARKER)
    with shard_lock(tmp_path / "run", 1) as first, shard_lock(tmp_path / "run", 1) as second:
        assert (first, second) == ("unsupported", "unsupported")


def test_with_locks_a_second_change_of_a_study_is_refused(tmp_path):
    create_study(tmp_path / "study")
    with (
        changed_study(tmp_path / "study"),
        pytest.raises(EncoreError, match="another process is changing it"),
        changed_study(tmp_path / "study"),
    ):
        pass


_RATE_WITHOUT_LOCKS = """
import errno, fcntl, sys

def refuse(*_):
    raise OSError(errno.ENOSYS, "Function not implemented")

fcntl.flock = refuse
from encore.runs.worker import work_through
from tests.runs.test_sharded_runs import make_job
from pathlib import Path

report = work_through(make_job(Path(sys.argv[1])))
print(report.summary)
"""


@pytest.mark.services
def test_two_processes_without_locks_do_not_wait_for_the_marker_of_a_dead_host(tmp_path):
    """A marker in place of a lock is waited for for ever: the process would not end in 60 s."""
    locks = tmp_path / "run" / "locks"
    locks.mkdir(parents=True)
    for index in range(3):
        (locks / f"shard-{index:05d}.lock").write_text(MARKER)
    command = [sys.executable, "-c", _RATE_WITHOUT_LOCKS, str(tmp_path)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert ", 0 failed" in out
        assert err.count("the file system has no locks") <= 1
    assert len([*(tmp_path / "run").glob("shard-*.parquet")]) == 3
