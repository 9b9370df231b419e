"""Files are written whole or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from encore.core.files import atomic_folder, atomic_path, atomic_write_bytes, file_sha256


def test_a_file_appears_only_when_it_is_complete(tmp_path):
    target = tmp_path / "shard.parquet"
    with atomic_path(target) as first, atomic_path(target) as second:
        first.write_bytes(b"first")
        second.write_bytes(b"second")
        assert first != second
        assert first.parent == tmp_path
        assert first.name.startswith(".")
        assert list(tmp_path.glob("*.parquet")) == []
    # The inner block ends first, so the outer one renames last.
    assert target.read_bytes() == b"first"
    atomic_write_bytes(target, b"abc")
    assert file_sha256(target) == hashlib.sha256(b"abc").hexdigest()
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_an_error_keeps_the_old_file_and_leaves_no_other(tmp_path, error):
    target = tmp_path / "shard.parquet"
    target.write_bytes(b"old")
    with pytest.raises(type(error)), atomic_path(target) as temporary:
        temporary.write_bytes(b"new, but not all of it")
        raise error
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize("is_complete", [False, True])
def test_an_error_keeps_the_old_folder_and_leaves_no_other(
    tmp_path, error, is_complete, monkeypatch
):
    """The error comes before the new folder is complete, or when it is renamed."""
    target = tmp_path / "model"
    for content in ("first", "old"):
        with atomic_folder(target) as temporary:
            (temporary / "weights").write_text(content)
    assert list(tmp_path.iterdir()) == [target]
    rename = Path.rename

    def refuse_new(source: Path, destination: Path) -> Path:
        if ".tmp-" in source.name:
            raise error
        return rename(source, destination)

    monkeypatch.setattr(Path, "rename", refuse_new)
    with pytest.raises(type(error)), atomic_folder(target) as temporary:
        (temporary / "weights").write_text("new")
        if not is_complete:
            raise error
    assert (target / "weights").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
