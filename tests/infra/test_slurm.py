"""The Slurm script in a simulated array: its tasks together rate what one command rates."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from encore.judges.judge_options import JudgeConfig
from encore.rating.rating_options import RatingConfig
from encore.rating.rating_run import rate
from tests.infra.programs import write_program
from tests.runs.test_crash import all_ratings
from tests.worlds.trainings import make_study

SCRIPT = Path(__file__).resolve().parents[2] / "infra" / "slurm" / "rate-array.sbatch"


def start_task(
    index: int, *arguments: str | Path, folder: Path, first: int = 0, step: int = 1, **slurm: str
) -> subprocess.Popen[str]:
    """Start one task of an array of three. ``folder`` holds the commands that it calls."""
    array = {"JOB_ID": 7, "TASK_ID": first + step * index, "TASK_COUNT": 3, "TASK_STEP": step}
    array |= {"TASK_MIN": first, "TASK_MAX": first + step * 2}
    environ = {f"SLURM_ARRAY_{name}": str(value) for name, value in array.items()} | slurm
    environ["PATH"] = f"{folder}:{os.environ['PATH']}"
    command = ["bash", str(SCRIPT), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env={**os.environ, **environ}, **pipes)


@pytest.mark.services
def test_three_tasks_rate_what_one_run_rates(tmp_path, tiny_judge):
    shared, alone = tmp_path / "shared", tmp_path / "alone"
    make_study(shared, num_pairs=8)
    shutil.copytree(shared, alone)
    write_program(tmp_path / "encore", f'exec "{sys.executable}" -m encore.cli "$@"')
    options = [shared, "--judge", tiny_judge, "--backend", "transformers", "--shard-size", 2]
    tasks = [start_task(index, *options, folder=tmp_path) for index in range(3)]
    outputs = [task.communicate(timeout=600)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0, 0], outputs
    config = JudgeConfig(model=str(tiny_judge), backend="transformers")
    rate(alone, RatingConfig(judge=config, shard_size=2))
    assert all_ratings(shared).equals(all_ratings(alone))


@pytest.mark.parametrize(("first", "step"), [(0, 1), (1, 1), (10, 5)])
def test_an_array_is_cut_into_slices_wherever_it_begins(tmp_path, first, step):
    write_program(tmp_path / "encore", 'echo "$@"; exit 3')
    for index in range(3):
        task = start_task(index, "study", folder=tmp_path, first=first, step=step)
        assert task.communicate(timeout=60)[0] == f"rate study --slice {index}/3\n"
        assert task.returncode == 3


def test_an_array_with_gaps_is_refused(tmp_path):
    task = start_task(0, "study", folder=tmp_path, SLURM_ARRAY_TASK_MAX="7")
    assert "must be a range" in task.communicate(timeout=60)[0]
    assert task.returncode == 2


@pytest.mark.parametrize(
    ("number", "restarts", "code", "calls"),
    [
        (signal.SIGUSR1, "0", 0, "scontrol requeue 7_0"),  # the time limit comes near
        (signal.SIGUSR1, "20", 3, ""),  # it came near too often
        (signal.SIGTERM, "0", 143, ""),  # scancel
    ],
)
def test_a_task_that_is_stopped_ends_its_command(tmp_path, number, restarts, code, calls):
    work = f"touch {tmp_path}/begun; while :; do sleep 0.05; done"
    write_program(tmp_path / "encore", f"trap 'echo ended; exit 143' TERM; {work}")
    write_program(tmp_path / "scontrol", 'echo scontrol "$@"')
    task = start_task(0, "study", folder=tmp_path, SLURM_RESTART_COUNT=restarts)
    while not (tmp_path / "begun").exists():
        time.sleep(0.05)
    task.send_signal(number)
    assert task.communicate(timeout=60)[0].split("\n", 1) == ["ended", f"{calls}\n".lstrip()]
    assert task.returncode == code
