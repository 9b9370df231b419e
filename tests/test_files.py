"""Files are written whole or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from encore.files import atomic_path, atomic_write_bytes, file_sha256


def test_written_bytes_are_the_bytes_given(tmp_path: Path) -> None:
    target = tmp_path / "shard.parquet"
    atomic_write_bytes(target, b"abc")
    assert target.read_bytes() == b"abc"
    assert file_sha256(target) == hashlib.sha256(b"abc").hexdigest()
    assert list(tmp_path.iterdir()) == [target]


def test_no_glob_for_the_target_sees_the_temporary_file(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "shard.parquet") as temporary:
        temporary.write_bytes(b"half")
        assert temporary.parent == tmp_path
        assert temporary.name.startswith(".")
        assert list(tmp_path.glob("*.parquet")) == []


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_an_error_leaves_the_old_file_and_no_trace(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "shard.parquet"
    target.write_bytes(b"old")
    with pytest.raises(type(error)), atomic_path(target) as temporary:
        temporary.write_bytes(b"new, but not all of it")
        raise error
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_two_writers_of_one_file_do_not_share_a_temporary_name(tmp_path: Path) -> None:
    target = tmp_path / "shard.parquet"
    with atomic_path(target) as first, atomic_path(target) as second:
        first.write_bytes(b"first")
        second.write_bytes(b"second")
        assert first != second
    # The inner block ends first, so the outer one renames last.
    assert target.read_bytes() == b"first"
