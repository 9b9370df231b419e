"""A shard is done if and only if it has a valid file; finished shards are not computed again."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import Mock, call

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.core import versions
from encore.core.errors import EncoreError, EveryShardError, GenerationInterruptedError, InputError
from encore.core.reporting import Reporter
from encore.runs import shard_listing, worker
from encore.runs.identity import run_key_of
from encore.runs.manifest import RunManifest, Shard, claim_folder, only_run
from encore.runs.shard_files import ShardTable, run_status, write_shard
from encore.runs.worker import Job, ReportRows, work_on, work_through
from tests.worlds.studies import shard_path

NUM_PAIRS, SHARD_SIZE = 12, 4  # three shards of 4 pairs


class SquareManifest(RunManifest):
    """A run that squares numbers: one row per pair."""

    FILE: ClassVar[str] = "squares.json"
    KEY_FIELD: ClassVar[str] = "key_"
    COMMAND: ClassVar[str] = "encore square"
    DOING: ClassVar[str] = "squaring"
    DONE: ClassVar[str] = "squared"

    key_: str

    @property
    def title(self) -> str:
        return "squares"

    @property
    def rows_per_pair(self) -> int:
        return 1


def make_manifest(*, salt: int = 0, num_pairs: int = NUM_PAIRS) -> SquareManifest:
    identity = {"salt": salt, "plan": {"num_pairs": num_pairs, "shard_size": SHARD_SIZE}}
    return SquareManifest(key_=run_key_of(identity), identity=identity, versions={})


def squares(shard: Shard, *, salt: int = 0) -> ShardTable:
    numbers = [position**2 + salt for position in range(shard.start, shard.stop)]
    return ShardTable(table=pa.table({"square": numbers}), footer={"num_squares": len(numbers)})


def compute(shard: Shard, report_rows: ReportRows) -> ShardTable:
    report_rows(shard.num_pairs)
    return squares(shard)


def make_job(folder: Path, **changes: Any) -> Job:
    job = Job(run_dir=folder / "run", manifest=make_manifest(), compute=compute)
    return dataclasses.replace(job, **changes)


@pytest.fixture
def finished(tmp_path: Path) -> Job:
    """Compute a run of three shards and return its job."""
    job = make_job(tmp_path)
    assert work_through(job).summary == "3 squared, 0 reused, 0 failed"
    return job


def states(job: Job) -> list[str]:
    return [shard.state for shard in run_status(job.run_dir, SquareManifest).shards]


def rows(job: Job) -> list[int]:
    status = run_status(job.run_dir, SquareManifest)
    return [row for path in status.paths for row in pq.read_table(path)["square"].to_pylist()]


# --- plan and files -----------------------------------------------------------------------------


def test_the_name_of_a_shards_file_has_the_digest_of_its_bytes(finished, tmp_path):
    status = run_status(finished.run_dir, SquareManifest)
    assert status.is_complete
    assert rows(finished) == [position**2 for position in range(NUM_PAIRS)]
    for shard in status.shards:
        digest = hashlib.sha256(shard.path.read_bytes()).hexdigest()
        assert shard.path.name == f"shard-{shard.index:05d}.{digest[:32]}.parquet"
        assert shard.sha256 == digest
    second_job = make_job(tmp_path / "again")  # the same rows give the same bytes
    work_through(second_job)
    names = [
        {path.name for path in job.run_dir.glob("*.parquet")} for job in (finished, second_job)
    ]
    assert names[0] == names[1]


def test_every_flipped_bit_is_detected(finished):
    path = shard_path(finished.run_dir, 0)
    content = path.read_bytes()
    rng = random.Random(4)
    for offset in rng.sample(range(len(content)), 100):
        flipped = bytearray(content)
        flipped[offset] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        assert states(finished) == ["damaged", "done", "done"], f"offset {offset}"


def _renamed(job: Job) -> None:
    path = shard_path(job.run_dir, 1)
    path.rename(path.with_name(path.name.replace("00001", "00002")))


def _copy_of_another_shard(job: Job) -> None:
    shard_path(job.run_dir, 2).unlink()
    path = shard_path(job.run_dir, 1)
    shutil.copy(path, path.with_name(path.name.replace("00001", "00002")))


def _shard_of_another_run(job: Job) -> None:
    shard = job.manifest.shards[2]
    shard_path(job.run_dir, 2).unlink()
    write_shard(job.run_dir, make_manifest(salt=1), shard, squares(shard))


def _too_few_rows(job: Job) -> None:
    shard = job.manifest.shards[2]
    shard_path(job.run_dir, 2).unlink()
    with pytest.raises(EncoreError, match="1 rows, not 4"):
        write_shard(job.run_dir, job.manifest, shard, ShardTable(table=squares(shard).table[:1]))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda job: shard_path(job.run_dir, 2).unlink(), "missing"),
        (lambda job: os.truncate(shard_path(job.run_dir, 2), 100), "damaged"),
        (_renamed, "done"),  # ignored beside the valid file
        (_copy_of_another_shard, "damaged"),
        (_shard_of_another_run, "damaged"),
        (_too_few_rows, "damaged"),
    ],
)
def test_only_missing_or_damaged_shards_are_computed_again(finished, change, expected):
    written_at = shard_path(finished.run_dir, 0).stat().st_mtime_ns
    change(finished)
    assert states(finished)[2] == expected
    work_through(finished)
    assert states(finished) == ["done"] * 3
    assert rows(finished) == [position**2 for position in range(NUM_PAIRS)]
    assert shard_path(finished.run_dir, 0).stat().st_mtime_ns == written_at


def test_two_writers_of_different_bytes_leave_one_valid_shard(tmp_path):
    """Two processes can write the same shard if locks do not work; the first file stays."""
    job = make_job(tmp_path)
    claim_folder(job.run_dir, job.manifest)
    shard = job.manifest.shards[0]
    state = write_shard(job.run_dir, job.manifest, shard, squares(shard))
    later_state = write_shard(job.run_dir, job.manifest, shard, squares(shard, salt=7))
    assert state.path == later_state.path == shard_path(job.run_dir, 0)
    assert pq.read_table(state.path)["square"].to_pylist() == [0, 1, 4, 9]
    assert len(list(job.run_dir.glob("*.parquet"))) == 1


def test_a_writer_with_an_old_listing_keeps_the_file_that_another_process_wrote_first(tmp_path):
    job = make_job(tmp_path)
    claim_folder(job.run_dir, job.manifest)
    shard = job.manifest.shards[0]
    job.listing._renew_at = 2 * time.monotonic()  # it is not renewed by itself during this test
    first_state = write_shard(job.run_dir, job.manifest, shard, squares(shard))
    later_state = write_shard(
        job.run_dir, job.manifest, shard, squares(shard, salt=7), listing=job.listing
    )
    assert later_state.path == first_state.path
    assert len(list(job.run_dir.glob("*.parquet"))) == 1


def test_a_shard_that_another_process_finished_is_not_computed_by_one_with_an_old_listing(tmp_path):
    job = make_job(tmp_path, compute=lambda *_: pytest.fail("computed twice"))
    claim_folder(job.run_dir, job.manifest)
    job.listing._renew_at = 2 * time.monotonic()
    shard = job.manifest.shards[0]
    write_shard(job.run_dir, job.manifest, shard, squares(shard))
    assert job.listing.files(0) == []
    assert work_on(job, shard).action == "reused"


def test_the_number_of_listings_does_not_grow_with_the_number_of_shards(tmp_path, monkeypatch):
    listings: list[Path] = []
    scandir = os.scandir

    def counted_scandir(folder: Path) -> Any:
        listings.append(folder)
        return scandir(folder)

    clock = Mock(monotonic=lambda: len(listings))  # a listing takes 1 s, all else takes none
    monkeypatch.setattr(shard_listing.os, "scandir", counted_scandir)
    monkeypatch.setattr(shard_listing, "time", clock)
    for num_shards in (3, 30):
        listings.clear()
        manifest = make_manifest(num_pairs=num_shards * SHARD_SIZE)
        work_through(make_job(tmp_path / str(num_shards), manifest=manifest))
        assert len(listings) == 1


def test_a_listing_is_renewed_when_it_is_old_whatever_the_time_of_the_folder(tmp_path, monkeypatch):
    clock = Mock(monotonic=Mock(side_effect=[0, 1, 20.9, 21, 22]))
    monkeypatch.setattr(shard_listing, "time", clock)
    listing = shard_listing.ShardListing(tmp_path)
    os.utime(tmp_path, (7, 7))
    assert listing.files(3) == []  # from 0 s to 1 s, so the next one is at 1 + 20 * 1
    path = tmp_path / f"shard-00003.{'0' * 32}.parquet"
    path.touch()
    os.utime(tmp_path, (7, 7))  # a file system whose times are coarse
    assert listing.files(3) == []  # at 20.9 s
    assert listing.files(3) == [path]  # at 21 s


def test_file_and_folder_are_flushed_before_a_shard_is_done(tmp_path, monkeypatch):
    job = make_job(tmp_path)
    claim_folder(job.run_dir, job.manifest)
    flushed: list[Path] = []
    fsync = os.fsync

    def recorded_fsync(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    write_shard(job.run_dir, job.manifest, job.manifest.shards[0], squares(job.manifest.shards[0]))
    cost, _, file, folder = flushed
    assert cost.name.startswith(".took-00000")
    assert file.name.startswith(".shard-00000")  # before it gets its name
    assert folder == job.run_dir  # after that


def test_the_versions_of_packages_are_read_once_for_all_shards(tmp_path, monkeypatch):
    read = Mock(return_value="1.0")
    monkeypatch.setattr(versions, "version", read)
    versions.installed_version.cache_clear()
    work_through(make_job(tmp_path))
    versions.installed_version.cache_clear()
    assert read.call_count == len(versions.RECORDED_PACKAGES)  # of three shards


def test_a_run_may_have_more_than_100_000_shards(tmp_path):
    manifest = make_manifest(num_pairs=100_001 * SHARD_SIZE)
    job = make_job(tmp_path, manifest=manifest, shard_indices=[10_000, 100_000])
    assert work_through(job).summary == "2 squared, 0 reused, 0 failed"
    assert shard_path(job.run_dir, 100_000).name.startswith("shard-100000.")
    assert work_through(job).summary == "0 squared, 2 reused, 0 failed"


def test_on_a_full_disk_a_shard_fails_and_leaves_no_file(finished, monkeypatch):
    full_disk = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    shard_path(finished.run_dir, 0).unlink()
    before = sorted(path.name for path in finished.run_dir.iterdir())
    monkeypatch.setattr(pq.ParquetWriter, "write_table", full_disk)
    with pytest.raises(EveryShardError, match="disk was full while shard 0 was written"):
        work_through(finished)
    after = sorted(path.name for path in finished.run_dir.iterdir())
    assert after == sorted([*before, "failed-00000.json"])
    assert states(finished) == ["failed", "done", "done"]


# --- manifests ----------------------------------------------------------------------------------


def test_a_changed_manifest_is_refused_with_advice(finished):
    path = finished.run_dir / SquareManifest.FILE
    manifest = json.loads(path.read_text())
    longer = {**manifest["identity"], "plan": {"num_pairs": 20, "shard_size": SHARD_SIZE}}
    for change in ({"identity": longer}, {"identity": None}, {"extra": 1}, {"key_": "0" * 16}):
        path.write_text(json.dumps(manifest | change))
        with pytest.raises(EncoreError, match=r"damaged .* delete that file .*`encore square`"):
            run_status(finished.run_dir, SquareManifest)
        with pytest.raises(EncoreError, match="damaged"):
            work_through(finished)


def test_a_lost_manifest_is_written_again_and_shards_are_kept(finished):
    (finished.run_dir / SquareManifest.FILE).unlink()
    with pytest.raises(EncoreError, match=r"squares\.json is missing; run `encore square`"):
        run_status(finished.run_dir, SquareManifest)
    assert work_through(finished).summary == "0 squared, 3 reused, 0 failed"
    assert states(finished) == ["done"] * 3


def test_a_folder_that_holds_something_else_is_refused_before_any_work(finished, tmp_path):
    other_job = make_job(
        tmp_path, manifest=make_manifest(salt=5), compute=lambda *_: pytest.fail("computed")
    )
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    for folder, message in (
        (finished.run_dir, "holds the run .* another model, other data or another plan"),
        (tmp_path / "file", "this is a file"),
        (tmp_path / "other", "other things in it .notes.txt."),
    ):
        with pytest.raises(InputError, match=message):
            work_through(dataclasses.replace(other_job, run_dir=folder))
    (finished.run_dir / SquareManifest.FILE).unlink()
    with pytest.raises(InputError, match="a shard of run"):
        work_through(other_job)


def test_another_process_may_begin_the_same_run_meanwhile(tmp_path, monkeypatch):
    job = make_job(tmp_path)
    job.run_dir.mkdir(exist_ok=True)

    def begin_run_and_list(folder: Path):
        monkeypatch.undo()
        claim_folder(job.run_dir, job.manifest)
        return folder.iterdir()

    monkeypatch.setattr(Path, "iterdir", begin_run_and_list)
    claim_folder(job.run_dir, job.manifest)
    assert set(states(job)) == {"missing"}


def test_the_only_run_is_taken_and_several_are_listed(tmp_path):
    manifests = [make_manifest(salt=salt) for salt in range(2)]
    for manifest in manifests:
        claim_folder(tmp_path / manifest.key, manifest)
    with pytest.raises(InputError) as caught:
        only_run(tmp_path, SquareManifest)
    assert all(
        f"{manifest.key} (squares, 0 of {manifest.num_pairs} pairs, 20" in str(caught.value)
        for manifest in manifests
    )
    (tmp_path / manifests[1].key / SquareManifest.FILE).write_text("{")
    with pytest.raises(InputError, match=r"2 runs .*squares.json damaged"):
        only_run(tmp_path, SquareManifest)
    shutil.rmtree(tmp_path / manifests[1].key)
    assert only_run(tmp_path, SquareManifest).name == manifests[0].key
    with pytest.raises(InputError, match="run `encore square"):
        only_run(tmp_path / "none", SquareManifest)


# --- work ---------------------------------------------------------------------------------------


def test_a_failed_shard_is_recorded_and_does_not_stop_the_others(tmp_path):
    def fails_once(shard: Shard, report_rows: ReportRows) -> ShardTable:
        if shard.index == 1:
            raise TimeoutError("passed 3 s\nof generation")
        return compute(shard, report_rows)

    job = make_job(tmp_path, compute=fails_once)
    report = work_through(job)
    assert report.summary == "2 squared, 0 reused, 1 failed"
    assert report.failures == {1: "TimeoutError: passed 3 s\nof generation"}
    [_, state, _] = run_status(job.run_dir, SquareManifest).shards
    assert (state.state, state.detail) == ("failed", "TimeoutError: passed 3 s of generation")
    (job.run_dir / "failed-00001.json").write_text("[]")
    assert states(job) == ["done", "failed", "done"]
    assert work_through(make_job(tmp_path)).summary == "1 squared, 2 reused, 0 failed"
    assert not (job.run_dir / "failed-00001.json").exists()


@pytest.mark.parametrize(
    "error", [EveryShardError("no engine"), OSError(errno.EROFS, "Read-only file system")]
)
def test_an_error_that_every_shard_would_meet_stops_the_run(tmp_path, error):
    fails = Mock(side_effect=error)
    with pytest.raises(type(error)):
        work_through(make_job(tmp_path, compute=fails))
    assert fails.call_count < 3  # of 3; the second may have begun


def test_the_engine_starts_only_for_open_shards_among_the_named_ones(tmp_path):
    job = make_job(tmp_path, start=Mock(return_value=2))
    job_of_last_shard = dataclasses.replace(job, shard_indices=[2, 2])
    assert work_through(job_of_last_shard).summary == "1 squared, 0 reused, 0 failed"
    assert states(job) == ["missing", "missing", "done"]
    assert work_through(job_of_last_shard).summary == "0 squared, 1 reused, 0 failed"
    job.start.assert_called_once_with()
    with pytest.raises(InputError, match=r"shard 3: run .* has shards 0 to 2"):
        work_through(dataclasses.replace(job, shard_indices=[3]))


def test_a_shard_finished_before_the_lock_was_taken_is_not_computed(tmp_path, monkeypatch):
    """Another process writes the shard between the first check and the lock."""
    job = make_job(tmp_path, compute=lambda *_: pytest.fail("computed twice"))
    shard, lock = job.manifest.shards[0], worker.shard_lock

    def write_and_lock(run_dir: Path, index: int) -> Any:
        write_shard(job.run_dir, job.manifest, shard, squares(shard))
        return lock(run_dir, index)

    monkeypatch.setattr(worker, "shard_lock", write_and_lock)
    assert work_on(job, shard).action == "reused"


def _hold_lock(run_dir: Path, is_locked: Any, may_end: Any) -> None:
    with worker.shard_lock(run_dir, 1) as is_mine:
        assert is_mine
        is_locked.set()
        may_end.wait(60)


def test_a_shard_of_another_process_is_waited_for_and_taken_over_when_it_dies(
    tmp_path, monkeypatch, caplog
):
    job = make_job(tmp_path)
    claim_folder(job.run_dir, job.manifest)
    context = multiprocessing.get_context("spawn")
    is_locked, may_end = context.Event(), context.Event()
    holder = context.Process(target=_hold_lock, args=(job.run_dir, is_locked, may_end))
    holder.start()
    assert is_locked.wait(60)
    assert work_on(job, job.manifest.shards[1]).action == "busy"

    def kill(_seconds: float) -> None:
        holder.kill()
        holder.join()

    monkeypatch.setattr(worker.time, "sleep", kill)
    assert work_through(job).summary == "3 squared, 0 reused, 0 failed"
    assert "waiting for another process that works on shards 1" in caplog.text


def test_an_interrupt_keeps_finished_shards_and_records_no_failure(tmp_path):
    class Interrupting(Reporter):
        def saved(self, path: Path, *, kind: str) -> None:
            raise KeyboardInterrupt

    job = make_job(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        work_through(job, reporter=Interrupting())
    assert "done" in states(job)
    assert "failed" not in states(job)
    assert not list(job.run_dir.glob(".*"))
    leftover = job.run_dir / ".shard-00000.tmp-1-abc"  # of a killed process
    leftover.touch()
    shard_path(job.run_dir, 0).unlink(missing_ok=True)
    assert work_through(job).failures == {}
    assert not leftover.exists()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_one_worker_is_the_calling_thread(tmp_path, num_workers):
    """A second thread that computes would have a second team of OpenMP threads."""
    threads = {threading.get_ident()}

    def watched(shard: Shard, report_rows: ReportRows) -> ShardTable:
        threads.add(threading.get_ident())
        return compute(shard, report_rows)

    work_through(make_job(tmp_path, start=lambda: num_workers, compute=watched))
    assert (len(threads) == 1) == (num_workers == 1)


def test_a_cancelled_run_interrupts_the_shard_at_work(tmp_path):
    job = make_job(tmp_path)
    job.cancelled.set()
    with pytest.raises(GenerationInterruptedError, match="cancelled"):
        work_on(job, job.manifest.shards[0])
    assert states(job)[0] == "missing"


def test_the_report_counts_new_shards_and_a_reporter_sees_only_these(tmp_path):
    def counted(shard: Shard, report_rows: ReportRows) -> ShardTable:
        counts = {"num_odd": 1, "kinds": {"even": 1, "odd": 1}}
        return dataclasses.replace(compute(shard, report_rows), counts=counts)

    job = make_job(tmp_path, compute=counted)
    work_through(dataclasses.replace(job, shard_indices=[0, 2]))
    reporter = Mock(spec=Reporter)
    report = work_through(job, reporter=reporter)
    [started], [saved] = reporter.started.call_args_list, reporter.saved.call_args_list
    assert started == call("squaring (2 of 3 shards were done before)", total=12, done=8)
    assert sum(advanced.args[0] for advanced in reporter.advanced.call_args_list) == SHARD_SIZE
    assert saved.kwargs["kind"] == "shard 1 squared (3 of 3)"
    assert report.total("num_squares") == NUM_PAIRS
    assert report.computed("num_odd") == 1
    assert report.counts_by("kinds") == {"even": 1, "odd": 1}


def test_the_speed_leaves_out_the_rows_that_an_earlier_call_had(tmp_path, monkeypatch):
    """Two of four rows are there at once, and two come in 10 s."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(worker, "time", clock)
    reporter = Mock(spec=Reporter)

    def continued(shard: Shard, report_rows: ReportRows) -> ShardTable:
        report_rows(2)
        clock.now = 10.0
        report_rows(4)
        return squares(shard)

    manifest = make_manifest(num_pairs=SHARD_SIZE)
    work_through(make_job(tmp_path, manifest=manifest, compute=continued), reporter=reporter)
    assert reporter.advanced.call_args_list[:2] == [call(2, note=""), call(2, note="0.2 rows/s")]
