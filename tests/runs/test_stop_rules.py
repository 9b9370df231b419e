"""A stop rule limits the shards of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from encore.runs.manifest import Shard
from encore.runs.shard_files import ShardState, ShardTable, run_status
from encore.runs.stop_rule import NEVER_STOP, EarlyStop
from encore.runs.worker import Job, ReportRows, work_through
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


def test_after_a_failed_shard_no_further_round_opens(tmp_path):
    bench = Bench(tmp_path, fails=frozenset({1}))
    report = work_through(bench.job())
    assert (report.summary, report.early_stop) == ("1 squared, 0 reused, 1 failed", None)
    assert report.failures[1].startswith("RuntimeError: square 1 is round")
    assert (bench.finished(), bench.early()) == ({0}, [])
