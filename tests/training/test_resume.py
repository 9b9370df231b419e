"""Kill -9 costs the steps since the last checkpoint and nothing else, through the real command."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from encore.training.checkpoints import OPTIMIZER_FILE, WEIGHTS_FILE, checkpoint_path
from encore.training.checkpoints import checkpoint_steps as steps_in
from encore.training.metrics_log import read_log
from tests.training.studies import make_backbone, make_study, repeatable, write_ratings

NUM_PAIRS = 88
CHECKPOINT_EVERY = 4
KILL_TIMEOUT_SECONDS = 300
#: Longer than the steps between two checkpoints take: a kill may come at any moment of training,
#: of an evaluation or of writing a checkpoint.
LATEST_KILL_SECONDS = 0.2


def train_command(folder: Path, *, out: Path, num_steps: int) -> list[str]:
    options = {
        "backbone": folder / "tiny",
        "ratings": folder / "ratings.parquet",
        "out": out,
        "max-length": 64,
        "batch-pairs": 4,
        "epochs": 100,
        "max-steps": num_steps,
        "learning-rate": 1e-3,
        "evaluate-every": 7,
        "checkpoint-every": CHECKPOINT_EVERY,
    }
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return [sys.executable, "-m", "encore.cli", "train", str(folder / "study"), *arguments]


def environment() -> dict[str, str]:
    """One thread: the order of a sum is part of its bits."""
    return os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def newest(out: Path) -> int:
    return max(steps_in(out / "checkpoints"), default=0)


def train_and_kill(command: list[str], out: Path, *, rng: random.Random) -> None:
    """Start training and kill -9 it at a random moment after it has written a checkpoint."""
    before = newest(out)
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + KILL_TIMEOUT_SECONDS
    while newest(out) == before:
        assert process.poll() is None, f"ended by itself with {process.returncode}"
        assert time.monotonic() < deadline, "no checkpoint was written"
        time.sleep(0.002)
    time.sleep(rng.random() * LATEST_KILL_SECONDS)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run was over before it could be killed"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    make_backbone(folder / "tiny")
    make_study(folder / "study", num_pairs=NUM_PAIRS)
    write_ratings(folder / "study", folder / "ratings.parquet")
    return folder


@pytest.mark.parametrize(
    ("num_kills", "num_steps"),
    [
        pytest.param(2, 160, id="2-kills", marks=pytest.mark.services),
        pytest.param(10, 900, id="10-kills", marks=pytest.mark.full),
    ],
)
@pytest.mark.timeout(1800)
def test_after_kills_weights_and_logged_losses_are_those_of_an_undisturbed_run(
    folder, tmp_path, num_kills, num_steps
):
    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    rng = random.Random(11)
    command = train_command(folder, out=killed, num_steps=num_steps)
    for _ in range(num_kills):
        train_and_kill(command, killed, rng=rng)
        assert 0 < newest(killed) < num_steps  # after the first checkpoint, before the last

    went_on = subprocess.run(
        command, env=environment(), check=True, capture_output=True, text=True
    ).stderr
    assert f"going on after step {newest_before(went_on)} of {num_steps}" in went_on
    subprocess.run(
        train_command(folder, out=undisturbed, num_steps=num_steps),
        env=environment(),
        check=True,
        capture_output=True,
    )

    for name in ("model.safetensors", "heads.safetensors"):
        assert (killed / "model" / name).read_bytes() == (undisturbed / "model" / name).read_bytes()
    last = checkpoint_path(Path("checkpoints"), num_steps)
    for name in (WEIGHTS_FILE, OPTIMIZER_FILE):
        assert (killed / last / name).read_bytes() == (undisturbed / last / name).read_bytes()
    for name in ("log.jsonl", "evaluations.jsonl"):
        assert repeatable(killed / name) == repeatable(undisturbed / name)
    steps = [record["step"] for record in read_log(killed / "log.jsonl")]
    assert steps == list(range(1, num_steps + 1))  # none twice, none missing
    assert not list(killed.rglob(".*.tmp-*"))


def newest_before(text: str) -> str:
    """The step that a resumed process said it goes on after: a checkpoint's."""
    words = text.split("going on after step ", 1)[1].split(" ", 1)[0]
    assert int(words.replace(",", "")) % CHECKPOINT_EVERY == 0
    assert int(words.replace(",", "")) > 0
    return words
