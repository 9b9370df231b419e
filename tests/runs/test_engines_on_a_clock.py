"""Engines and their supervisor by a clock that the test moves: who waits for whom, and how long."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from encore.cli import engine_process
from encore.core.errors import EncoreError, EveryShardError
from encore.core.versions import code_digest
from encore.runs.engine import work_as_engine
from encore.runs.engine_messages import EngineHeartbeat, EngineSpec, write_heartbeat
from encore.runs.engine_supervisor import EngineState, supervise
from encore.runs.local_engines import (
    DISK_FULL_CODE,
    GPU_VARIABLE,
    LocalLauncher,
    engine_environments,
)
from encore.runs.run_files import Shard, ShardTable, claim_folder, write_shard
from encore.runs.shard_runner import Job, ReportRows, RunReport, shard_lock
from tests.runs.test_sharded_runs import SHARD_SIZE, make_job, make_manifest, squares

pytestmark = pytest.mark.timeout(30)  # a hang ends here

MANY_SECONDS = 2000


@dataclass
class Clock:
    """A clock that moves only when somebody waits; then the others act.

    Attributes:
        now: The time in seconds. It begins late enough that nothing seems to have just happened.
        others_act: What the processes beside the tested one do while it waits.
    """

    now: float = 1000.0
    others_act: Callable[[], None] = lambda: None

    @property
    def seconds(self) -> float:
        """Return the seconds since the test began."""
        return self.now - 1000

    def wait(self, seconds: float) -> None:
        self.now += seconds
        assert self.seconds < MANY_SECONDS, "the tested process waits for ever"
        self.others_act()


class Cancelled(threading.Event):
    """An event on which a wait moves the clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self.clock.wait(timeout or 0)
        return self.is_set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(time, "sleep", clock.wait)
    return clock


def spec_of(job: Job, slot: int, num_engines: int) -> EngineSpec:
    return EngineSpec(
        name=f"{slot}-here",
        slot=slot,
        num_engines=num_engines,
        run_key=job.manifest.key,
        code_digest=code_digest(),
    )


# --- an engine ----------------------------------------------------------------------------------


@dataclass
class Bench:
    """An engine beside a peer that has shard 2 at work for ever.

    Attributes:
        began: Seconds at which this engine began each shard.
        shard_seconds: Time that a shard takes here.
        peer_is_silent: True if the peer finishes no further request.
    """

    folder: Path
    clock: Clock
    num_shards: int = 3
    shard_seconds: float = 1.0
    peer_is_silent: bool = False
    began: dict[int, float] = field(default_factory=dict)
    peer: EngineHeartbeat = field(
        default_factory=lambda: EngineHeartbeat(
            engine="1-peer", state="working", rows_by_open_shard={2: 0}
        )
    )

    def work(self, *, slot: int = 0, num_engines: int = 2, silence_seconds: float) -> RunReport:
        manifest = make_manifest(num_pairs=self.num_shards * SHARD_SIZE)
        job = make_job(self.folder, manifest=manifest, compute=self._compute)
        job = replace(job, cancelled=Cancelled(self.clock))
        spec = spec_of(job, slot, num_engines)
        return work_as_engine(job, spec, silence_seconds=silence_seconds)

    def with_peer(self) -> None:
        """Let the peer write its heartbeat while the engine waits."""

        def act() -> None:
            if not self.peer_is_silent:
                self.peer.num_finished_requests += 1
            write_heartbeat(self.folder / "run", self.peer)

        manifest = make_manifest(num_pairs=self.num_shards * SHARD_SIZE)
        claim_folder(self.folder / "run", manifest)
        self.clock.others_act = act
        act()

    def _compute(self, shard: Shard, report_rows: ReportRows) -> ShardTable:
        self.began[shard.index] = self.clock.seconds
        self.clock.wait(self.shard_seconds)
        report_rows(shard.num_pairs)
        return squares(shard)


def test_a_silent_peer_is_not_waited_for(tmp_path, clock):
    """Shards 0 and 1 take 2 s. The peer is silent since 0 s: its shard is free after 10 s."""
    bench = Bench(tmp_path, clock, peer_is_silent=True)
    bench.with_peer()
    assert bench.work(silence_seconds=10).summary == "3 squared, 0 reused, 0 failed"
    assert (bench.began[0], bench.began[1]) == (0, 1)
    assert 10 < bench.began[2] <= 12


@pytest.mark.parametrize(
    ("shard_seconds", "slot", "late_seconds"),
    [
        (1, 0, 20),  # never sooner
        (30, 0, 60),  # twice the time of the slowest shard here
        (30, 1, 62),  # the second engine leaves it to the first one for 2 s
    ],
)
def test_a_shard_of_a_slow_peer_is_taken_over_when_it_is_late(
    tmp_path, clock, shard_seconds, slot, late_seconds
):
    """Two shards are computed here first; from their end the peer's shard is seen at work."""
    bench = Bench(tmp_path, clock, shard_seconds=shard_seconds)
    bench.with_peer()
    with shard_lock(tmp_path / "run", 2):  # the peer's
        bench.work(slot=slot, silence_seconds=5)
    seen_at = 2 * shard_seconds
    assert seen_at + late_seconds < bench.began[2] <= seen_at + late_seconds + 2


def test_an_engine_takes_its_slice_and_then_the_last_shards_of_the_others(tmp_path, clock):
    """Slot 1 of 3. Of the free shards it takes the last but one, and leaves the last to slot 0:

    0 2 3 5 (6) 8 · 0 2 3 (5) 8 · 0 2 (3) 8 · 0 (2) 8 · (0) 8 · (8)
    """
    bench = Bench(tmp_path, clock, num_shards=9)
    bench.work(slot=1, num_engines=3, silence_seconds=60)
    assert [*bench.began] == [1, 4, 7, 6, 5, 3, 2, 0, 8]


# --- the supervisor -----------------------------------------------------------------------------


class Launcher:
    """A launcher whose engines are a function that acts once in each second of their life.

    Attributes:
        act: Function that acts as an engine, given its spec and its age in seconds.
        specs: Specs of all starts, in their order.
        kills: Time and name of each engine that was stopped as one that hangs.
    """

    def __init__(
        self,
        clock: Clock,
        act: Callable[[EngineSpec, int], None] = lambda _spec, _age: None,
        *,
        state: EngineState | None = None,
        adopted: Sequence[EngineSpec] = (),
    ) -> None:
        self.act, self.clock, self.adopted = act, clock, adopted
        self.fixed_state = state or EngineState("running")
        self.specs: list[EngineSpec] = []
        self.kills: list[tuple[float, str]] = []
        self.ages: dict[str, int] = {}
        clock.others_act = self._others_act

    def _others_act(self) -> None:
        for spec in self.specs:
            if spec.name in self.ages:
                self.act(spec, self.ages[spec.name])
                self.ages[spec.name] += 1

    def adopt(self, run_key: str) -> Sequence[EngineSpec]:
        return self.adopted

    def start(self, spec: EngineSpec) -> None:
        self.specs.append(spec)
        self.ages[spec.name] = 0

    def state(self, name: str) -> EngineState:
        return self.fixed_state

    def stop(self, name: str, *, kill: bool = False) -> None:
        self.ages.pop(name, None)
        if kill:
            self.kills.append((self.clock.seconds, name))

    def close(self) -> None:
        """Wait for nothing."""


def beat(job: Job, spec: EngineSpec, num_requests: int, **fields: Any) -> None:
    """Write the heartbeat of an engine that has worked on shard 0 since it began."""
    defaults: dict[str, Any] = {"state": "working", "rows_by_open_shard": {0: 0}}
    heartbeat = EngineHeartbeat(
        engine=spec.name, num_finished_requests=num_requests, **defaults | fields
    )
    write_heartbeat(job.run_dir, heartbeat)


def finish(job: Job, index: int) -> None:
    shard = job.manifest.shards[index]
    write_shard(job.run_dir, job.manifest, shard, squares(shard))


def test_a_silent_engine_is_replaced_and_one_that_loads_or_is_slow_is_not(tmp_path, clock):
    """The first engine of slot 0 hangs from 100 s on; 60 s later another takes its slot.

    The engine of slot 1 loads for 300 s. Then it finishes a request every 50 s.
    """
    job = make_job(tmp_path)
    rows: list[Sequence[Mapping[str, object]]] = []

    def act(spec: EngineSpec, age: int) -> None:
        if spec.slot == 1 and age < 300:
            beat(job, spec, 0, state="starting", rows_by_open_shard={})
        elif spec.slot == 1:
            beat(job, spec, (age - 250) // 50)
        elif len(launcher.specs) == 2:
            beat(job, spec, min(age, 100))
        else:
            beat(job, spec, age)
        if clock.seconds == 600:
            for index in range(3):
                finish(job, index)

    def show(table: Sequence[Mapping[str, object]], *, now: bool = False) -> None:
        rows.append(table)

    launcher = Launcher(clock, act)
    report = supervise(job, launcher, num_engines=2, silence_seconds=60, show=show)
    assert report.summary == "3 squared, 0 reused, 0 failed"
    [(killed_at, name)] = launcher.kills
    assert 160 <= killed_at <= 163
    assert name == launcher.specs[0].name
    assert [spec.slot for spec in launcher.specs] == [0, 1, 0]
    # Six requests after the first one, in 300 s and the 10 s in which engines may end: 0.0194.
    assert rows[-1][1]["per second"] == "0.019"


def test_the_table_of_engines_has_failed_shards_their_median_seconds_and_the_time_left(
    tmp_path, clock
):
    job = make_job(tmp_path, manifest=make_manifest(num_pairs=9 * SHARD_SIZE))
    rows: list[Mapping[str, object]] = []

    def act(spec: EngineSpec, age: int) -> None:
        beat(job, spec, 1 + age, failed_shards=[8] if age >= 10 else [])
        # The engine finishes four shards after 10 s, which took it 30, 40, 60 and 400 s.
        for index, seconds in enumerate([30.0, 40.0, 60.0, 400.0] if age == 10 else []):
            shard = job.manifest.shards[index]
            cost = {"engine": spec.name, "engine_seconds": seconds}
            write_shard(job.run_dir, job.manifest, shard, replace(squares(shard), cost=cost))
        for index in range(4, 8) if age == 20 else ():
            finish(job, index)

    launcher = Launcher(clock, act)
    supervise(
        *(job, launcher),
        num_engines=1,
        silence_seconds=60,
        show=lambda table, *, now=False: rows.append(table[0]),
    )
    columns = ("failed", "seconds a shard", "time left")
    tables = [tuple(row[name] for name in columns) for row in rows]
    assert tables[0] == (0, "–", "–")
    # The median is 50 s. Five shards are open, shard 8 too until the engine has no other: 250 s.
    assert (1, "50.0", "4 min") in tables
    assert tables[-1] == (1, "50.0", "–")  # the open shard has failed for good


def test_an_engine_that_is_lost_three_times_in_a_row_is_given_up(tmp_path, clock):
    launcher = Launcher(clock, state=EngineState("lost", "signal 9 ended it"))
    with pytest.raises(EncoreError, match=r"engine 2 of 2: signal 9 ended it, 3 times in a row"):
        supervise(make_job(tmp_path), launcher, num_engines=2, silence_seconds=60)
    assert len(launcher.specs) == 6


def test_shards_of_an_adopted_engine_count_as_computed_with_their_counts(tmp_path, clock):
    """An earlier parent of the run died; its engine computed shard 0, somebody else shard 1."""
    job = make_job(tmp_path)
    claim_folder(job.run_dir, job.manifest)
    adopted = spec_of(job, 0, 1)
    for index, engine in enumerate((adopted.name, "0-gone")):
        shard = job.manifest.shards[index]
        content = replace(squares(shard), counts={"num_odd": 2}, cost={"engine": engine})
        write_shard(job.run_dir, job.manifest, shard, content)
    launcher = Launcher(clock, adopted=[adopted])
    clock.others_act = lambda: finish(job, 2)
    report = supervise(job, launcher, num_engines=1, silence_seconds=60)
    assert (report.summary, launcher.specs) == ("2 squared, 1 reused, 0 failed", [])
    assert report.computed("num_odd") == 2


# --- local engines ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engines", "gpus_per_engine", "groups"),
    [(2, 1, ["4", "5"]), (2, 2, ["4,5", "6,7"]), ("auto", 1, ["4", "5", "6", "7"])],
)
def test_each_engine_has_gpus_of_its_own(monkeypatch, engines, gpus_per_engine, groups):
    monkeypatch.setenv(GPU_VARIABLE, "4,5,6,7")
    environments = engine_environments(engines, gpus_per_engine)
    assert environments == [{GPU_VARIABLE: group} for group in groups]


@pytest.fixture
def full_disk() -> EveryShardError:
    error = EveryShardError("the disk was full while shard 3 was written")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    return error


def test_the_exit_code_of_an_engine_says_that_its_disk_is_full(monkeypatch, full_disk):
    """The process neither flushes its log, which would fail, nor ends with another code."""
    monkeypatch.setattr(engine_process, "_work", Mock(side_effect=full_disk))
    monkeypatch.setattr(engine_process.threading, "Thread", Mock())
    monkeypatch.setattr(engine_process, "EngineRequest", Mock())
    monkeypatch.setattr(engine_process.sys, "stdin", Mock())
    leave = Mock(side_effect=SystemExit)
    monkeypatch.setattr(engine_process.os, "_exit", leave)
    with pytest.raises(SystemExit):
        engine_process.main()
    leave.assert_called_once_with(DISK_FULL_CODE)
    engine_process._work.side_effect = EveryShardError("no engine")
    with pytest.raises(EveryShardError):
        engine_process.main()


def test_a_parent_names_the_full_disk_of_an_engine_without_a_log(tmp_path):
    launcher = LocalLauncher("rate", Mock(), [{}], run_dir=tmp_path, retries=0)
    process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({DISK_FULL_CODE})"])
    process.wait()
    launcher.processes["0-a"] = process
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines/0-a.log").touch()
    state = launcher.state("0-a")
    assert state.state == "ended"
    assert f"a disk was full, perhaps that of {tmp_path}; make room" in state.message
