"""A shard whose engine died is put back; a run whose engine dies again and again ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from encore.core.errors import EncoreError, EnginesDiedError, JudgeUnavailableError, is_engine_dead
from encore.runs.manifest import Shard
from encore.runs.shard_files import ShardTable
from encore.runs.worker import Job, ReportRows, work_through
from tests.runs.test_sharded_runs import SHARD_SIZE, make_job, make_manifest, squares, states

pytestmark = [pytest.mark.services, pytest.mark.timeout(60)]


class EngineDeadError(Exception):
    """Error with the name of vLLM's."""


class OutOfMemoryError(RuntimeError):
    """Error with the name of torch's, after which the process goes on."""


def caused(error: Exception, cause: Exception, *, is_hidden: bool = False) -> Exception:
    """Return an error that was raised because of another, or ``from None`` while it was handled."""
    error.__context__ = cause
    error.__suppress_context__ = is_hidden
    return error


@pytest.mark.parametrize(
    ("error", "is_dead"),
    [
        (EngineDeadError(), True),
        (caused(RuntimeError("generation failed"), EngineDeadError()), True),
        (
            caused(JudgeUnavailableError("no start"), RuntimeError("CUDA error: out of memory")),
            True,
        ),
        (RuntimeError("CUDA error: device-side assert triggered"), True),
        (RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"), True),
        (RuntimeError("HIP error: an illegal memory access was encountered"), True),
        (caused(RuntimeError("no reply"), EngineDeadError(), is_hidden=True), False),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), False),
        (EncoreError("the server answered 500: CUDA error: device-side assert"), False),
        (ValueError("CUDA error"), False),
    ],
)
def test_an_engine_is_dead_by_its_error_or_one_behind_it(error, is_dead):
    assert is_engine_dead(error) == is_dead


class Mortal:
    """Function that computes shards, and whose engine dies at some of its calls.

    Attributes:
        dies: Tells if the engine dies, given the number of the call and the shard.
        calls: Indices of the shards so far.
    """

    def __init__(self, dies: Callable[[int, int], bool]) -> None:
        self.dies = dies
        self.calls: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, shard: Shard, report_rows: ReportRows) -> ShardTable:
        with self._lock:
            self.calls.append(shard.index)
            number = len(self.calls)
        report_rows(1)
        if self.dies(number, shard.index):
            raise EngineDeadError("EngineCore encountered an issue")
        return squares(shard)


def job_of(folder: Path, compute: Mortal, *, num_shards: int = 6) -> Job:
    manifest = make_manifest(num_pairs=num_shards * SHARD_SIZE)
    return make_job(folder, manifest=manifest, compute=compute)


def test_a_shard_is_put_back_and_not_failed(tmp_path, caplog):
    compute = Mortal(lambda number, _: number == 3)
    report = work_through(job_of(tmp_path, compute))
    assert report.summary == "6 squared, 0 reused, 0 failed"
    assert compute.calls == [0, 1, 2, 3, 4, 5, 2]
    assert "shard 2 is put back, its engine died: EngineDeadError" in caplog.text
    assert "waiting for another process" not in caplog.text


def test_a_process_goes_on_while_shards_are_finished_between_deaths(tmp_path):
    compute = Mortal(lambda number, _: number in (1, 3, 5, 7))
    assert work_through(job_of(tmp_path, compute)).summary == "6 squared, 0 reused, 0 failed"
    assert len(compute.calls) == 6 + 4


@pytest.mark.parametrize("num_workers", [1, pytest.param(2, marks=pytest.mark.services)])
def test_a_shard_that_kills_every_engine_ends_the_run_when_all_others_are_done(
    tmp_path, num_workers
):
    compute = Mortal(lambda _, index: index == 1)
    job = replace(job_of(tmp_path, compute), start=lambda: num_workers)
    with pytest.raises(EnginesDiedError, match=r"died 3 times in a row, last at shard 1 .*again"):
        work_through(job)
    assert states(job) == ["done", "missing", "done", "done", "done", "done"]
    assert compute.calls.count(1) <= 4
    compute.dies = lambda _, __: False  # the next command has another engine
    assert work_through(job).summary == "1 squared, 5 reused, 0 failed"


def test_a_dead_engine_ends_after_three_shards(tmp_path):
    compute = Mortal(lambda _, __: True)
    with pytest.raises(EnginesDiedError):
        work_through(job_of(tmp_path, compute))
    assert len(compute.calls) == 3
