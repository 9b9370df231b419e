"""Kill -9 costs the shard at work and nothing else: the files end up the same, to the byte."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from encore.files import file_sha256
from encore.runs import run_status
from encore.scoring.head_scores import ScoreManifest
from tests.scoring.models import make_model, score
from tests.training.studies import make_study

PAIRS_PER_SHARD = 4
NUM_SHARDS, NUM_KILLS = 200, 3
_START_SECONDS = 300


def score_command(study: Path, model: Path) -> list[str]:
    options = ["--model", str(model), "--shard-size", str(PAIRS_PER_SHARD)]
    return [sys.executable, "-m", "encore.cli", "score", str(study), *options]


def written(study: Path) -> dict[str, tuple[int, int]]:
    """Every shard file with what would change if it were written again."""
    files = study.glob("scores/*/shard-*.parquet")
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def score_and_kill(study: Path, model: Path, *, rng: random.Random) -> None:
    """Start scoring and kill -9 it at a random moment after it has written a shard."""
    before = len(written(study))
    process = subprocess.Popen(
        score_command(study, model), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + _START_SECONDS
    while len(written(study)) == before:
        assert process.poll() is None, f"ended by itself with {process.returncode}"
        assert time.monotonic() < deadline, "no shard was written"
        time.sleep(0.002)
    time.sleep(rng.random() * 0.1)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run was over before it could be killed"


@pytest.mark.services
def test_after_kills_the_scores_are_those_of_an_undisturbed_run(tmp_path):
    model = make_model(tmp_path / "model")
    make_study(tmp_path / "killed", num_pairs=NUM_SHARDS * PAIRS_PER_SHARD)
    shutil.copytree(tmp_path / "killed", tmp_path / "undisturbed")
    rng = random.Random(7)

    kept = []
    for _ in range(NUM_KILLS):
        score_and_kill(tmp_path / "killed", model, rng=rng)
        kept.append(written(tmp_path / "killed"))
        assert 0 < len(kept[-1]) < NUM_SHARDS
    killed, undisturbed = (
        score(tmp_path / study, model, shard_size=PAIRS_PER_SHARD).out
        for study in ("killed", "undisturbed")
    )

    assert killed.name == undisturbed.name
    assert run_status(killed, ScoreManifest).is_complete
    final = written(tmp_path / "killed")
    for snapshot in kept:  # a shard that was there is the same file to the end
        assert snapshot.items() <= final.items()
    for path in undisturbed.glob("*.*"):
        assert file_sha256(killed / path.name) == file_sha256(path), path.name
    assert not list((tmp_path / "killed").rglob(".*.tmp-*"))
