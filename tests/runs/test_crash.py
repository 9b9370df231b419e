"""Kill -9 costs the shard at work and nothing else, through the real command and engine."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.data.ingestion import ingest
from encore.data.rating_runs import list_runs, run_status
from encore.judges.judge_config import JudgeConfig
from encore.rating.rating_config import RatingConfig
from encore.rating.rating_run import rate
from tests.rating.test_rating_run import write_source
from tests.signals import start_and_kill
from tests.worlds.tiny_judge import make_tiny_judge

PAIRS_PER_SHARD = 2


def rate_command(study: Path, judge: Path, backend: str) -> list[str]:
    options = ["--judge", judge, "--backend", backend, "--shard-size", PAIRS_PER_SHARD]
    return [sys.executable, "-m", "encore.cli", "rate", str(study), *map(str, options)]


def environment() -> dict[str, str]:
    return os.environ | {"ENCORE_CPU_KV_CACHE_GIB": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def shard_stamps(study: Path) -> dict[str, tuple[int, int]]:
    """Return inode and time of every shard file: both change if it is written again."""
    files = (study / "ratings").glob("*/shard-*.parquet")
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def rate_and_kill(study: Path, command: list[str], *, rng: random.Random) -> None:
    """Start rating and kill -9 it at a random moment after it has written a shard."""
    start_and_kill(
        command,
        environment(),
        progress=lambda: len(shard_stamps(study)),
        rng=rng,
        latest_seconds=0.3,
    )


def all_ratings(study: Path) -> pa.Table:
    [run_dir] = list_runs(study / "ratings")
    status = run_status(run_dir)
    assert status.is_complete
    return pa.concat_tables([pq.read_table(path) for path in status.paths])


@pytest.mark.parametrize(
    ("backend", "num_kills", "num_shards"),
    [
        ("transformers", 1, 10),
        pytest.param("vllm", 20, 90, marks=[pytest.mark.full, pytest.mark.timeout(3600)]),
    ],
)
def test_after_kills_the_ratings_are_those_of_an_undisturbed_run(
    tmp_path, backend, num_kills, num_shards
):
    judge = make_tiny_judge(tmp_path / "judge")
    source = write_source(tmp_path, num_pairs=num_shards * PAIRS_PER_SHARD)
    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    ingest([f"mine={source}"], out=killed)
    shutil.copytree(killed, undisturbed)
    command, rng = rate_command(killed, judge, backend), random.Random(7)

    kept: list[dict[str, tuple[int, int]]] = []
    for _ in range(num_kills):
        rate_and_kill(killed, command, rng=rng)
        kept.append(shard_stamps(killed))
        assert 0 < len(kept[-1]) < num_shards
    subprocess.run(command, env=environment(), check=True, capture_output=True)
    final = shard_stamps(killed)
    assert len(final) == num_shards
    for snapshot in kept:  # a shard that was there is the same file to the end
        assert snapshot.items() <= final.items()
    assert not list(killed.rglob(".*.tmp-*"))

    config = JudgeConfig(model=str(judge), backend=backend)
    rate(undisturbed, RatingConfig(judge=config, shard_size=PAIRS_PER_SHARD))
    assert all_ratings(killed).equals(all_ratings(undisturbed))
