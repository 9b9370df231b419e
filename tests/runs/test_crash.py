"""After kill -9 of the real command only the shard at work is computed again."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from encore.data.rating_runs import list_runs, run_status
from encore.data.study import open_study
from encore.demo import JUDGE_PATH
from encore.judges import open_judge
from encore.judges.judge_options import JudgeConfig
from encore.rating.rating_options import RatingConfig
from encore.rating.rating_run import open_run, rate
from encore.runs.worker import work_through
from tests.signals import encore_process, start_and_kill
from tests.worlds.servers import wait_until
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
        pytest.param("transformers", 1, 10, marks=pytest.mark.full),
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


def num_kept_replies(study: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in study.glob("ratings/*/replies-*"))


@pytest.mark.services
@pytest.mark.timeout(600)
def test_a_shard_killed_on_vllm_is_asked_for_what_it_lacks_and_has_the_same_ratings(tmp_path):
    """The process dies as soon as half of its 400 replies are on disk."""
    pairs = numbered_pairs(20)
    killed, undisturbed = (study_of(pairs, tmp_path / name) for name in ("killed", "undisturbed"))
    command = [sys.executable, "-m", "encore.cli", "rate", str(killed), "--judge", str(JUDGE_PATH)]
    start_and_kill(
        command,
        ENVIRONMENT,
        progress=lambda: num_kept_replies(killed) >= 200,
        rng=random.Random(7),
        latest_seconds=0,
    )
    num_kept = num_kept_replies(killed)
    assert 200 <= num_kept < 400
    assert not list(killed.glob("ratings/*/shard-*"))
    config = RatingConfig(judge=JudgeConfig(model=str(JUDGE_PATH)))
    with closing(open_judge(config.judge)) as judge:
        runs = [open_run(open_study(study), config, judge=judge) for study in (killed, undisturbed)]
        reports = [work_through(run.job()) for run in runs]
    assert [report.computed("num_calls") for report in reports] == [400 - num_kept, 400]
    assert all_ratings(killed).equals(all_ratings(undisturbed))


@pytest.mark.services
def test_a_killed_shard_of_a_local_judge_is_continued_in_its_middle(tmp_path):
    """At least 100 of 200 prompts are answered when it is killed; these are not asked again.

    The second call is terminated, and its last lines say what is kept. The third one finishes.
    """
    study = study_of(numbered_pairs(10), tmp_path / "study")
    options = ["rate", study, "--judge", JUDGE_PATH, "--backend", "transformers"]
    command = [sys.executable, "-m", "encore.cli", *map(str, options)]

    def num_kept() -> int:
        return num_kept_replies(study)

    start_and_kill(
        command,
        ENVIRONMENT,
        progress=lambda: num_kept() >= 100,
        rng=random.Random(7),
        latest_seconds=0.3,
    )
    num_killed = num_kept()
    assert 100 <= num_killed < 200
    with encore_process(*options) as process:
        wait_until(lambda: num_kept() > num_killed, seconds=60, pause_seconds=0.01)
        process.terminate()
        *_, stopped, following = process.communicate()[1].splitlines()
    assert process.returncode == 143
    assert num_killed < num_kept() < 200
    kept = f"0 of 1 shard and {num_kept()} replies of an unfinished shard are kept"
    assert stopped == f"error: terminated; {kept}, the same command continues"
    assert following == shlex.join(["next:", "encore", *map(str, options)])
    num_stopped = num_kept()
    finished = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True)
    values = json.loads(finished.stdout)
    assert values["num_kept"] == num_stopped
    assert values["plan"]["num_calls"]["actual"] == 200 - num_stopped
