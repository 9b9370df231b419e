"""A study is made and changed completely or not at all."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from encore.core.errors import EncoreError, InputError
from encore.data.study import changed_study, open_study
from tests.worlds.studies import create_study, file_contents

MARKER = {"study.json": b'{"encore_study": 1}\n'}


@pytest.mark.parametrize("marker", [None, "{", "[]", '{"encore_study": 2}'])
def test_a_directory_that_is_not_a_study_is_refused(tmp_path, marker):
    if marker is not None:
        (tmp_path / "study.json").write_text(marker)
    with pytest.raises(
        InputError, match="not a study" if marker is None else "damaged or of another"
    ):
        open_study(tmp_path)
    with pytest.raises(InputError, match=r"no such directory; .*`encore ingest"):
        open_study(tmp_path / "study")


def test_a_study_does_not_replace_a_file_or_a_full_directory(tmp_path):
    (tmp_path / "file").write_text("x")
    for path, message in ((tmp_path / "file", "a file"), (tmp_path, "other things in it")):
        with pytest.raises(InputError, match=message), changed_study(path):
            pytest.fail("the change must not begin")


def test_a_new_study_appears_with_its_first_change(tmp_path):
    path = tmp_path / "runs" / "study"
    with changed_study(path) as change:
        assert change.study is None
        change.path("pairs/a").write_text("A")
        assert not path.parent.exists()
    assert file_contents(path) == {**MARKER, "pairs/a": b"A"}
    assert list(path.parent.iterdir()) == [path]
    assert file_contents(create_study(tmp_path / "runs" / "empty").path) == MARKER


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study"
    with changed_study(path) as change:
        change.path("pairs/a").write_text("A")
        change.path("pairs/b").write_text("B")
    return path


def test_an_interrupted_change_leaves_the_study_as_it_was(study):
    parent = study.parent
    before = file_contents(parent)
    for path in (study, parent / "runs" / "new"):
        with pytest.raises(KeyboardInterrupt), changed_study(path) as change:
            change.path("pairs/a").write_text("other")
            change.path("pairs/c").write_text("new")
            raise KeyboardInterrupt
    assert file_contents(parent) == before
    assert list(parent.iterdir()) == [study]


@pytest.mark.parametrize(
    ("fails_at", "error"), [(0, KeyboardInterrupt()), (1, OSError("broken disk")), (2, OSError())]
)
def test_a_change_that_fails_while_files_are_moved_is_undone(study, fails_at, error, monkeypatch):
    before = file_contents(study)
    real_replace = Path.replace

    def failing_replace(self: Path, target: Path) -> Path:
        if target.name == "abc"[fails_at]:
            monkeypatch.setattr(Path, "replace", real_replace)
            raise error
        return real_replace(self, target)

    with pytest.raises(type(error)), changed_study(study) as change:
        for name in "abc":
            change.path(f"pairs/{name}").write_text(f"new {name}")
        monkeypatch.setattr(Path, "replace", failing_replace)
    assert file_contents(study) == before


def test_two_changes_at_once_are_refused(study):
    with changed_study(study) as change:
        change.path("pairs/a").write_text("first")
        with (
            pytest.raises(EncoreError, match="another process is changing it"),
            changed_study(study),
        ):
            pytest.fail("the change must not begin")
    assert file_contents(study / "pairs") == {"a": b"first", "b": b"B"}


def test_a_study_that_another_process_made_meanwhile_stays(tmp_path):
    path = tmp_path / "study"
    with pytest.raises(EncoreError, match="another process made it"), changed_study(path) as change:
        change.path("pairs/a").write_text("late")
        with changed_study(path) as earlier_change:
            earlier_change.path("pairs/a").write_text("early")
    assert file_contents(path / "pairs") == {"a": b"early"}
    assert list(tmp_path.iterdir()) == [path]


def test_staging_folders_of_killed_processes_are_removed_and_locked_ones_stay(study):
    folders = {name: study / f".change.tmp-{name}" for name in ("dead", "working", "young")}
    for name, folder in folders.items():
        folder.mkdir()
        (folder / "half-written").write_text("x")
        if name != "young":
            old = time.time() - 3600
            os.utime(folder, (old, old))
    working = os.open(folders["working"], os.O_RDONLY)
    fcntl.flock(working, fcntl.LOCK_EX)
    try:
        with changed_study(study) as change:
            change.path("pairs/new").write_text("new")
    finally:
        os.close(working)
    assert not folders["dead"].exists()
    assert (folders["working"] / "half-written").exists()
    assert (folders["young"] / "half-written").exists()
