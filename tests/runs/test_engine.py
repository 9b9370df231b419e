"""An engine's last heartbeat says if it ended; silence is measured from its last progress."""

from __future__ import annotations

import dataclasses
import time
from unittest.mock import Mock

import pytest

from encore.core.errors import EveryShardError
from encore.core.versions import code_digest
from encore.runs import engine
from encore.runs.engine import work_as_engine
from encore.runs.engine_messages import EngineHeartbeat, EngineSpec, SilenceTimer, read_heartbeats
from encore.runs.run_files import Shard, ShardTable
from encore.runs.shard_runner import Job, ReportRows
from tests.runs.test_sharded_runs import make_job


def only_engine(job: Job) -> EngineSpec:
    """Return the engine ``one`` of a run that has no other."""
    key = job.manifest.key
    return EngineSpec(name="one", slot=0, num_engines=1, run_key=key, code_digest=code_digest())


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (SystemExit(143), "working"),  # SIGTERM: a worker was stopped, a pod evicted
        (EveryShardError("no engine"), "ended"),
    ],
)
def test_an_engine_has_ended_after_an_error_but_not_after_a_signal(tmp_path, error, state):
    job = make_job(tmp_path, compute=Mock(side_effect=error))
    with pytest.raises(type(error)):
        work_as_engine(job, only_engine(job), silence_seconds=60)
    heartbeat = read_heartbeats(job.run_dir)["one"]
    assert (heartbeat.state, heartbeat.rows_by_open_shard) == (state, {})


def test_an_idle_engine_that_takes_work_is_not_silent(monkeypatch):
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    timer = SilenceTimer()
    idle = EngineHeartbeat(engine="one", state="working", num_finished_requests=7)
    busy = idle.model_copy(update={"rows_by_open_shard": {3: 0}})
    since_first_look = [timer.seconds_silent(beat) for beat in (idle, idle, idle)]
    assert since_first_look == [20, 40, 60]
    since_work = [timer.seconds_silent(beat) for beat in (busy, busy)]  # it hangs from here on
    assert since_work == [20, 40]
    assert timer.seconds_silent(busy.model_copy(update={"num_finished_requests": 8})) == 20


def test_an_engine_whose_server_is_away_is_not_silent_and_not_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "_HEARTBEAT_SECONDS", -1)  # each report of rows writes one
    monkeypatch.setattr(engine.faulthandler, "dump_traceback_later", rearm := Mock())
    clock = iter(range(0, 10_000, 20))
    timer, silent, waited, rearmed = SilenceTimer(), [], iter([0, 0, 5, 5, 7] * 3), []

    def compute(shard: Shard, report_rows: ReportRows) -> ShardTable:
        for _ in range(4):
            report_rows(0)
            [heartbeat] = read_heartbeats(job.run_dir).values()
            with monkeypatch.context() as patch:
                patch.setattr(time, "monotonic", lambda: next(clock))
                silent.append(timer.seconds_silent(heartbeat))
            rearmed.append(rearm.call_count)
        raise EveryShardError("the end of the test")

    job = dataclasses.replace(
        make_job(tmp_path, compute=compute), wait_seconds=lambda: next(waited)
    )
    with pytest.raises(EveryShardError):
        work_as_engine(job, only_engine(job), silence_seconds=60)
    # The first heartbeat is written before the shard, with 0 s. The others say 0, 5, 5 and 7 s.
    assert silent == [20, 20, 40, 20]
    assert rearmed == [1, 2, 2, 3]
