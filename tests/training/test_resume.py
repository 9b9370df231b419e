"""Kill -9 of the real command costs only the steps since the last checkpoint."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from encore.training.checkpoints import OPTIMIZER_FILE, WEIGHTS_FILE, checkpoint_path
from encore.training.checkpoints import checkpoint_steps as steps_in
from encore.training.run_folder import read_log
from tests.signals import start_and_kill
from tests.worlds.trainings import make_world, one_thread, repeatable, train_command

CHECKPOINT_EVERY = 4
SETTINGS = {"batch_pairs": 4, "evaluate_every": 7, "checkpoint_every": CHECKPOINT_EVERY}
#: Longer than the time between two checkpoints. A kill may come during a step, an evaluation
#: or the writing of a checkpoint.
LATEST_KILL_SECONDS = 0.2


def newest(out: Path) -> int:
    return max(steps_in(out / "checkpoints"), default=0)


@pytest.mark.parametrize(
    ("num_kills", "num_steps", "preference_head"),
    [
        pytest.param(1, 80, "joint", id="1-kill-with-head-0", marks=pytest.mark.services),
        pytest.param(10, 900, "none", id="10-kills", marks=pytest.mark.full),
    ],
)
@pytest.mark.timeout(1800)
def test_after_kills_weights_and_logged_losses_equal_those_of_an_undisturbed_run(
    tmp_path, num_kills, num_steps, preference_head
):
    folder = make_world(tmp_path, num_pairs=88)
    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    rng = random.Random(11)
    settings = {**SETTINGS, "max_steps": num_steps, "preference_head": preference_head}
    commands = [
        [sys.executable, *train_command(folder, out=out, **settings)]
        for out in (killed, undisturbed)
    ]
    for _ in range(num_kills):
        start_and_kill(
            commands[0],
            one_thread(),
            progress=lambda: newest(killed),
            rng=rng,
            latest_seconds=LATEST_KILL_SECONDS,
        )
        assert 0 < newest(killed) < num_steps  # after the first checkpoint, before the last
    messages = [
        subprocess.run(command, env=one_thread(), check=True, capture_output=True, text=True).stderr
        for command in commands
    ]
    [step] = re.findall(rf"going on after step (\d+) of {num_steps}", messages[0])
    assert int(step) > 0
    assert int(step) % CHECKPOINT_EVERY == 0

    last = checkpoint_path(Path("checkpoints"), num_steps)
    files = ("model/model.safetensors", "model/heads.safetensors")
    for name in (*files, last / WEIGHTS_FILE, last / OPTIMIZER_FILE):
        assert (killed / name).read_bytes() == (undisturbed / name).read_bytes()
    for name in ("log.jsonl", "evaluations.jsonl"):
        assert repeatable(killed / name) == repeatable(undisturbed / name)
    steps = [record["step"] for record in read_log(killed / "log.jsonl")]
    assert steps == list(range(1, num_steps + 1))  # no step is missing or logged twice
    assert not list(killed.rglob(".*.tmp-*"))
