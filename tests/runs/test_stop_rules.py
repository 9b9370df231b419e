"""A stop rule limits the shards of a run, in one process and with several engines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from encore.runs.engine import work_as_engine
from encore.runs.engine_messages import EngineSpec, ShardLimit, read_heartbeats, write_shard_limit
from encore.runs.engine_supervisor import EngineState, supervise
from encore.runs.run_files import Shard, ShardState, ShardTable, run_status
from encore.runs.shard_runner import NEVER_STOP, EarlyStop, Job, ReportRows, RunReport, work_through
from tests.runs.test_engine import only_engine
from tests.runs.test_sharded_runs import SHARD_SIZE, SquareManifest, make_manifest, squares

NUM_SHARDS = 8


@dataclass
class RoundRule:
    """A stop rule of rounds: a round opens when all shards of the round before are done."""

    ends: Sequence[int]
    num_open_shards: int = 0
    early_stop: EarlyStop | None = None
    indices: set[int] = field(default_factory=set)

    def update(self, finished_shards: Sequence[ShardState]) -> None:
        self.indices |= {state.index for state in finished_shards}
        reached = [end for end in (0, *self.ends) if self.indices >= set(range(end))]
        later = [end for end in self.ends if end > reached[-1]]
        self.num_open_shards = later[0] if later else reached[-1]
        self.early_stop = None if later else EarlyStop("enough", True)


@dataclass
class Bench:
    """A run of squares that records each shard as it begins, with the shards done before it."""

    folder: Path
    stop_rule: RoundRule = field(default_factory=lambda: RoundRule((2, 3, 5)))
    fails: frozenset[int] = frozenset()
    begun: list[tuple[int, frozenset[int]]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def job(self, *, num_workers: int = 1) -> Job:
        manifest = make_manifest(num_pairs=NUM_SHARDS * SHARD_SIZE)
        return Job(
            run_dir=self.folder / "run",
            manifest=manifest,
            compute=self._compute,
            start=lambda: self.starts.append(1) or num_workers,
            stop_rule=self.stop_rule,
        )

    def _compute(self, shard: Shard, report_rows: ReportRows) -> ShardTable:
        self.begun.append((shard.index, self.finished()))
        report_rows(0)
        if shard.index in self.fails:
            raise RuntimeError(f"square {shard.index} is round")
        return squares(shard)

    def finished(self) -> frozenset[int]:
        """Return the indices of the finished shards."""
        shards = run_status(self.folder / "run", SquareManifest).shards
        return frozenset(shard.index for shard in shards if shard.state == "done")

    def early(self) -> list[int]:
        """Return the shards that began before the round before theirs was done."""
        ends = (0, *self.stop_rule.ends)
        first = {i: max(end for end in ends if end <= i) for i in range(ends[-1])}
        return [
            index
            for index, finished in self.begun
            if index not in first or not finished >= set(range(first[index]))
        ]


class ThreadLauncher:
    """Starts engines as threads of this process."""

    def __init__(self, job: Callable[[], Job]) -> None:
        self.job, self.threads, self.jobs = job, dict[str, threading.Thread](), dict[str, Job]()

    def adopt(self, run_key: str) -> Sequence[EngineSpec]:
        return ()

    def start(self, spec: EngineSpec) -> None:
        job = replace(self.job(), cancelled=threading.Event())
        thread = threading.Thread(
            target=work_as_engine, args=(job, spec), kwargs={"silence_seconds": 60}
        )
        self.threads[spec.name], self.jobs[spec.name] = thread, job
        thread.start()

    def state(self, name: str) -> EngineState:
        return EngineState("running" if self.threads[name].is_alive() else "ended")

    def stop(self, name: str, *, kill: bool = False) -> None:
        self.jobs[name].cancelled.set()

    def close(self) -> None:
        for thread in self.threads.values():
            thread.join(10)
            assert not thread.is_alive()


def supervised(bench: Bench, *, num_engines: int = 2) -> RunReport:
    launcher = ThreadLauncher(bench.job)
    return supervise(bench.job(), launcher, num_engines=num_engines, silence_seconds=60)


@pytest.fixture(autouse=True)
def poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("engine", "engine_supervisor"):
        monkeypatch.setattr(f"encore.runs.{name}._POLL_SECONDS", 0.05)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_one_process_works_through_the_rounds_and_starts_its_model_once(tmp_path, num_workers):
    bench = Bench(tmp_path)
    report = work_through(bench.job(num_workers=num_workers))
    assert report.summary == "5 squared, 0 reused, 0 failed"
    assert report.early_stop == ("enough", True)
    assert (bench.early(), len(bench.starts)) == ([], 1)
    # The goal is reached: no model is started. Without a rule all shards are computed.
    assert work_through(bench.job()).summary == "0 squared, 5 reused, 0 failed"
    assert len(bench.starts) == 1
    report = work_through(replace(bench.job(), stop_rule=NEVER_STOP))
    assert (report.summary, report.early_stop) == ("3 squared, 5 reused, 0 failed", None)


def test_engines_take_only_shards_of_open_rounds_and_start_once(tmp_path):
    bench = Bench(tmp_path)
    report = supervised(bench)
    assert report.summary == "5 squared, 0 reused, 0 failed"
    assert report.early_stop == ("enough", True)
    assert (bench.early(), len(bench.starts)) == ([], 2)
    assert {beat.state for beat in read_heartbeats(tmp_path / "run").values()} == {"ended"}
    assert supervised(bench).summary == "0 squared, 5 reused, 0 failed"  # no engine is started
    assert len(bench.starts) == 2


@pytest.mark.parametrize("run", [supervised, lambda bench: work_through(bench.job())])
def test_after_a_failed_shard_no_further_round_opens(tmp_path, run):
    bench = Bench(tmp_path, fails=frozenset({1}))
    report = run(bench)
    assert (report.summary, report.early_stop) == ("1 squared, 0 reused, 1 failed", None)
    assert report.failures[1].startswith("RuntimeError: square 1 is round")
    assert (bench.finished(), bench.early()) == ({0}, [])


def test_an_engine_without_a_supervisor_ends(tmp_path, monkeypatch):
    bench = Bench(tmp_path)
    job = replace(bench.job(), stop_rule=NEVER_STOP)
    job.run_dir.mkdir()
    write_shard_limit(job.run_dir, ShardLimit(num_open_shards=2, is_final=False, version=1))
    report = work_as_engine(job, only_engine(job), silence_seconds=0.3)
    assert report.summary == "2 squared, 0 reused, 0 failed"
