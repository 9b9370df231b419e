"""A study appears and changes as a whole."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from encore.data.study import changed_study, create_study, open_study
from encore.errors import EncoreError, InputError


def everything(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones included."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_created_study_can_be_opened(tmp_path: Path) -> None:
    study = create_study(tmp_path / "runs" / "study")
    assert open_study(study.path) == study
    assert study.pairs_dir == study.path / "pairs"
    assert study.ratings_dir == study.path / "ratings"
    assert everything(study.path) == {"study.json": b'{"encore_study": 1}\n'}


def test_creating_it_again_changes_nothing(tmp_path: Path) -> None:
    create_study(tmp_path / "study")
    (tmp_path / "study" / "note").write_text("mine")
    before = everything(tmp_path)
    create_study(tmp_path / "study")
    assert everything(tmp_path) == before


def test_an_empty_directory_becomes_a_study(tmp_path: Path) -> None:
    assert open_study(create_study(tmp_path).path)


def test_opening_nothing_says_how_to_make_a_study(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such directory; make it with `encore ingest"):
        open_study(tmp_path / "study")


def test_a_directory_without_the_marker_is_no_study(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no study\.json"):
        open_study(tmp_path)


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ("", "damaged"),
        ("{", "damaged"),
        ("[]", "format None"),
        ("{}", "format None"),
        ('{"encore_study": 2}', "format 2"),
    ],
)
def test_a_marker_of_another_kind_is_refused(tmp_path: Path, marker: str, said: str) -> None:
    (tmp_path / "study.json").write_text(marker)
    with pytest.raises(InputError, match=said):
        open_study(tmp_path)


def test_a_study_is_not_made_over_something_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for path, said in ((tmp_path / "file", "a file"), (tmp_path / "full", "other things in it")):
        with pytest.raises(InputError, match=said):
            create_study(path)
        with pytest.raises(InputError, match=said), changed_study(path):
            pytest.fail("must not start")


def test_a_new_study_appears_with_its_first_change(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "study"
    with changed_study(path) as change:
        assert change.study is None
        change.path("pairs/a").write_text("A")
        assert not path.parent.exists()
    assert everything(tmp_path) == {
        "runs/study/study.json": b'{"encore_study": 1}\n',
        "runs/study/pairs/a": b"A",
    }


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt()])
def test_a_failed_first_change_leaves_no_study(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), changed_study(tmp_path / "runs" / "study") as change:
        change.path("pairs/a").write_text("A")
        raise error
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study"
    with changed_study(path) as change:
        change.path("pairs/a").write_text("A")
        change.path("pairs/b").write_text("B")
    return path


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt()])
def test_a_failed_change_leaves_the_study_as_it_was(study: Path, error: BaseException) -> None:
    before = everything(study)
    with pytest.raises(type(error)), changed_study(study) as change:
        change.path("pairs/a").write_text("other")
        change.path("pairs/c").write_text("new")
        raise error
    assert everything(study) == before
    assert sorted(path.name for path in study.iterdir()) == ["pairs", "study.json"]


def test_a_change_replaces_adds_and_discards(study: Path) -> None:
    with changed_study(study) as change:
        for name in "abc":
            change.path(f"pairs/{name}").write_text(f"new {name}")
        change.discard("pairs/b")
    after = everything(study / "pairs")
    assert after == {"a": b"new a", "b": b"B", "c": b"new c"}


@pytest.mark.parametrize("error", [OSError("broken disk"), KeyboardInterrupt()])
@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_a_change_that_fails_half_way_into_place_is_taken_back(
    study: Path, fails_at: int, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(study)
    real_replace = Path.replace
    num_calls = 0

    def failing_replace(self: Path, target: Path) -> Path:
        nonlocal num_calls
        num_calls += 1
        if num_calls == fails_at + 1:
            raise error
        return real_replace(self, target)

    with pytest.raises(type(error)), changed_study(study) as change:
        for name in "abc":
            change.path(f"pairs/{name}").write_text(f"new {name}")
        monkeypatch.setattr(Path, "replace", failing_replace)
    assert everything(study) == before


def test_two_changes_at_once_are_refused(study: Path) -> None:
    before = everything(study)
    with changed_study(study) as change:
        change.path("pairs/a").write_text("first")
        with (
            pytest.raises(EncoreError, match="another process is changing it"),
            changed_study(study),
        ):
            pytest.fail("must not start")
    assert everything(study) == {**before, "pairs/a": b"first"}


def test_a_study_that_somebody_else_made_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "study"
    with (
        pytest.raises(EncoreError, match="another process made it"),
        changed_study(path) as change,
    ):
        change.path("pairs/a").write_text("late")
        with changed_study(path) as other:
            other.path("pairs/a").write_text("early")
    assert everything(path / "pairs") == {"a": b"early"}
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_cleared_but_not_what_another_works_in(
    study: Path,
) -> None:
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
