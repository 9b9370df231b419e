"""A file that was checked once is known by its digest; any other file is checked in full."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.core.files import file_sha256
from encore.runs import checked_shards
from encore.runs import shard_files as runs
from encore.runs.checked_shards import CHECKED_FILE
from encore.runs.shard_files import RunStatus, run_status
from encore.runs.worker import Job, work_through
from tests.runs.test_sharded_runs import SquareManifest, make_job
from tests.worlds.studies import flip_bit, shard_path


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """List the shards whose files are decoded from now on."""
    indices: list[int] = []
    decode = runs._checked_footer

    def record_index(content: bytes, manifest: Any, shard: Any, **options: Any) -> dict[str, Any]:
        indices.append(shard.index)
        return decode(content, manifest, shard, **options)

    monkeypatch.setattr(runs, "_checked_footer", record_index)
    return indices


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = make_job(tmp_path)
    work_through(job)
    return job


def status_of(job: Job) -> RunStatus[SquareManifest]:
    return run_status(job.run_dir, SquareManifest)


def test_the_status_of_a_finished_run_decodes_no_file_and_is_the_same(job, decoded):
    recorded = status_of(job)
    assert decoded == []
    (job.run_dir / CHECKED_FILE).unlink()
    assert status_of(job) == recorded
    assert sorted(decoded) == [0, 1, 2]


def test_a_changed_bit_is_seen_without_decoding(job, decoded):
    flip_bit(shard_path(job.run_dir, 1))
    damaged = status_of(job).shards[1]
    assert (damaged.state, damaged.detail) == (
        "damaged",
        "its file cannot be used: its content does not match its SHA-256",
    )
    assert decoded == []


def test_a_new_file_is_checked_though_an_earlier_one_of_its_shard_was(job, decoded):
    path = shard_path(job.run_dir, 1)
    forged = job.run_dir / "forged"
    pq.write_table(pa.table({"square": [1, 2]}), forged)  # too few rows, and no footer
    path.unlink()
    forged.rename(path.with_name(f"shard-00001.{file_sha256(forged)[:32]}.parquet"))
    assert [shard.state for shard in status_of(job).shards] == ["done", "damaged", "done"]
    assert decoded == [1]
    assert work_through(job).summary == "1 squared, 2 reused, 0 failed"
    decoded.clear()
    assert status_of(job).is_complete
    assert decoded == []


@pytest.mark.parametrize("content", ["of other checks", "of another run", "torn", "a list"])
def test_a_record_that_does_not_fit_is_as_good_as_none(job, decoded, monkeypatch, content):
    path = job.run_dir / CHECKED_FILE
    record = json.loads(path.read_bytes())
    if content == "of other checks":
        monkeypatch.setattr(checked_shards, "_CHECKS", 0)
    elif content == "of another run":
        path.write_text(json.dumps(record | {"run_key": "0123456789abcdef"}))
    elif content == "torn":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.write_text("[]")
    assert status_of(job).is_complete
    assert sorted(decoded) == [0, 1, 2]


def test_calls_for_parts_of_a_run_add_to_the_record_and_a_call_without_work_keeps_it(
    tmp_path, decoded
):
    for indices in ([0], [1, 2]):
        work_through(make_job(tmp_path, shard_indices=indices))
    decoded.clear()
    job = make_job(tmp_path)
    assert status_of(job).is_complete
    written_at = (job.run_dir / CHECKED_FILE).stat().st_mtime_ns
    assert work_through(job).summary == "0 squared, 3 reused, 0 failed"
    assert decoded == []
    assert (job.run_dir / CHECKED_FILE).stat().st_mtime_ns == written_at


def test_a_record_that_cannot_be_written_fails_nothing(tmp_path, decoded, monkeypatch):
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checked_shards, "write_json", refuse)
    job = make_job(tmp_path)
    assert work_through(job).summary == "3 squared, 0 reused, 0 failed"
    decoded.clear()
    copied = Path(shutil.copytree(job.run_dir, tmp_path / "copy" / "run"))
    assert run_status(copied, SquareManifest).is_complete
    assert sorted(decoded) == [0, 1, 2]
