"""Kill -9 costs the shard at work and nothing else, through the real command and engine."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.data.ingestion import ingest
from encore.rating_runs import list_runs, run_status
from tests.test_rating import write_source
from tests.tiny_judge import make_tiny_judge

PAIRS_PER_SHARD = 10
KILL_TIMEOUT_SECONDS = 300


def rate_command(study: Path, judge: Path) -> list[str]:
    options = ["--judge", str(judge), "--shard-size", str(PAIRS_PER_SHARD)]
    return [sys.executable, "-m", "encore.cli", "rate", str(study), *options]


def environment() -> dict[str, str]:
    return os.environ | {"ENCORE_CPU_KV_CACHE_GIB": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def written(study: Path) -> dict[str, tuple[int, int]]:
    """Every shard file with what would change if it were written again."""
    files = (study / "ratings").glob("*/shard-*.parquet")
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def rate_and_kill(study: Path, judge: Path, *, rng: random.Random) -> None:
    """Start rating and kill -9 it at a random moment after it has written a shard."""
    before = len(written(study))
    process = subprocess.Popen(
        rate_command(study, judge),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + KILL_TIMEOUT_SECONDS
    while len(written(study)) == before:
        assert process.poll() is None, f"ended by itself with {process.returncode}"
        assert time.monotonic() < deadline, "no shard was written"
        time.sleep(0.002)
    time.sleep(rng.random() * 0.3)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run was over before it could be killed"


def all_ratings(study: Path) -> pa.Table:
    [run_dir] = list_runs(study / "ratings")
    status = run_status(run_dir)
    assert status.is_complete
    return pa.concat_tables([pq.read_table(path) for path in status.paths])


@pytest.mark.parametrize(
    ("num_kills", "num_shards"),
    [
        pytest.param(2, 12, id="2-kills"),
        pytest.param(20, 90, id="20-kills", marks=pytest.mark.full),
    ],
)
@pytest.mark.timeout(3600)
def test_after_kills_the_ratings_are_those_of_an_undisturbed_run(tmp_path, num_kills, num_shards):
    judge = make_tiny_judge(tmp_path / "judge")
    source = write_source(tmp_path, num_pairs=num_shards * PAIRS_PER_SHARD, length=20)
    ingest([f"mine={source}"], out=tmp_path / "killed")
    shutil.copytree(tmp_path / "killed", tmp_path / "undisturbed")
    rng = random.Random(7)

    kept: list[dict[str, tuple[int, int]]] = []
    for _ in range(num_kills):
        rate_and_kill(tmp_path / "killed", judge, rng=rng)
        kept.append(written(tmp_path / "killed"))
        assert 0 < len(kept[-1]) < num_shards
    for study in ("killed", "undisturbed"):
        subprocess.run(
            rate_command(tmp_path / study, judge),
            env=environment(),
            check=True,
            capture_output=True,
        )

    final = written(tmp_path / "killed")
    assert len(final) == num_shards
    for snapshot in kept:  # a shard that was there is the same file to the end
        assert snapshot.items() <= final.items()
    assert all_ratings(tmp_path / "killed").equals(all_ratings(tmp_path / "undisturbed"))
    assert not list((tmp_path / "killed").rglob(".*.tmp-*"))
