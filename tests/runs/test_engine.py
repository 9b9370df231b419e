"""An engine's last heartbeat says if it ended; silence is measured from its last progress."""

from __future__ import annotations

import time
from unittest.mock import Mock

import pytest

from encore.core.errors import EveryShardError
from encore.core.versions import code_digest
from encore.runs.engine import work_as_engine
from encore.runs.engine_messages import EngineHeartbeat, EngineSpec, SilenceTimer, read_heartbeats
from encore.runs.shard_runner import Job
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
