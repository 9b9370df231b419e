"""After kill -9 of the real command only the shard at work is computed again."""

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

from encore.data.rating_runs import list_runs, run_status
from encore.judges.judge_options import JudgeConfig
from encore.rating.rating_options import RatingConfig
from encore.rating.rating_run import rate
from tests.signals import start_and_kill
from tests.worlds.studies import numbered_pairs, study_of

PAIRS_PER_SHARD = 2
ENVIRONMENT = os.environ | {"ENCORE_CPU_KV_CACHE_GIB": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def shard_stamps(study: Path) -> dict[str, tuple[int, int]]:
    """Return inode and time of every shard file: both change if it is written again."""
    files = (study / "ratings").glob("*/shard-*.parquet")
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def all_ratings(study: Path) -> pa.Table:
    [run_dir] = list_runs(study / "ratings")
    status = run_status(run_dir)
    assert status.is_complete
    return pa.concat_tables([pq.read_table(path) for path in status.paths])


@pytest.mark.parametrize(
    ("backend", "num_kills", "num_shards"),
    [
        pytest.param("transformers", 1, 10, marks=pytest.mark.services),
        pytest.param("vllm", 20, 90, marks=[pytest.mark.full, pytest.mark.timeout(3600)]),
    ],
)
def test_after_kills_the_ratings_are_those_of_an_undisturbed_run(
    tiny_judge, tmp_path, backend, num_kills, num_shards
):
    pairs = numbered_pairs(num_shards * PAIRS_PER_SHARD)
    killed = study_of(pairs, tmp_path / "killed")
    undisturbed = Path(shutil.copytree(killed, tmp_path / "undisturbed"))
    options = ["--judge", tiny_judge, "--backend", backend, "--shard-size", PAIRS_PER_SHARD]
    command = [sys.executable, "-m", "encore.cli", "rate", str(killed), *map(str, options)]
    rng = random.Random(7)
    stamps_after_kill: list[dict[str, tuple[int, int]]] = []
    for _ in range(num_kills):
        start_and_kill(
            command,
            ENVIRONMENT,
            progress=lambda: len(shard_stamps(killed)),
            rng=rng,
            latest_seconds=0.3,
        )
        stamps_after_kill.append(shard_stamps(killed))
        assert 0 < len(stamps_after_kill[-1]) < num_shards
    subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True)
    final_stamps = shard_stamps(killed)
    assert len(final_stamps) == num_shards
    for stamps in stamps_after_kill:  # a finished shard stays the same file
        assert stamps.items() <= final_stamps.items()
    assert not list(killed.rglob(".*.tmp-*"))

    config = JudgeConfig(model=str(tiny_judge), backend=backend)
    rate(undisturbed, RatingConfig(judge=config, shard_size=PAIRS_PER_SHARD))
    assert all_ratings(killed).equals(all_ratings(undisturbed))
