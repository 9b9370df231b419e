"""Training under Prefect as a process that is killed, stopped and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from encore.training.checkpoints import checkpoint_steps
from tests.flows.test_command import ROOT
from tests.flows.test_train_reward_model import weights_of
from tests.tasks.mlflow_store import Logged, copied
from tests.training.studies import make_backbone, make_study, write_ratings

NUM_STEPS = 400
_START_SECONDS = 300.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    make_backbone(folder / "tiny")
    make_study(folder / "study", num_pairs=48)
    write_ratings(folder / "study", folder / "ratings.parquet")
    return folder


class Command:
    """`python -m flows.train_reward_model` into a folder of its own."""

    def __init__(self, made: Path, template: Path, out: Path, environ: dict[str, str]) -> None:
        self.out = out
        self.uri = copied(template, out.with_suffix(".db"))
        self.environ = environ
        self.arguments = [
            *(sys.executable, "-m", "flows.train_reward_model", str(made / "study")),
            *("--backbone", str(made / "tiny"), "--max-length", "64"),
            *("--ratings", str(made / "ratings.parquet"), "--out", str(out)),
            *("--batch-pairs", "4", "--learning-rate", "1e-3", "--epochs", "100"),
            *("--evaluate-every", "25", "--checkpoint-every", "25", "--evaluation-share", "0.2"),
            *("--max-steps", str(NUM_STEPS), "--tracking-uri", self.uri),
        ]

    def end_after_a_checkpoint(self, number: int) -> tuple[int, str]:
        """Send a signal when there is a new checkpoint; the exit code and what was said."""
        before = self.newest()
        process = subprocess.Popen(
            self.arguments, cwd=ROOT, env=self.environ, stderr=subprocess.PIPE, text=True
        )
        give_up = time.monotonic() + _START_SECONDS
        while self.newest() == before:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < give_up
            time.sleep(0.01)
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
        return process.returncode, said

    def run(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.arguments,
            cwd=ROOT,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )

    def newest(self) -> int:
        return max(checkpoint_steps(self.out / "checkpoints"), default=0)


@pytest.mark.services
def test_killed_and_interrupted_it_ends_as_if_nothing_had_happened(
    made, mlflow_template, tmp_path, with_server
):
    environ = {**with_server, "OMP_NUM_THREADS": "1"}
    undisturbed = Command(made, mlflow_template, tmp_path / "undisturbed", environ)
    finished = undisturbed.run()
    assert finished.returncode == 0, finished.stderr

    disturbed = Command(made, mlflow_template, tmp_path / "disturbed", environ)
    code, _ = disturbed.end_after_a_checkpoint(signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert Logged(disturbed.uri).run().info.status == "RUNNING"

    code, said = disturbed.end_after_a_checkpoint(signal.SIGTERM)
    assert code == 143, said
    assert "the same command continues" in said
    assert Logged(disturbed.uri).run().info.status == "KILLED"
    assert 0 < disturbed.newest() < NUM_STEPS

    went_on = disturbed.run()
    assert went_on.returncode == 0, went_on.stderr
    assert weights_of(disturbed.out) == weights_of(undisturbed.out)
    for command in (disturbed, undisturbed):
        logged = Logged(command.uri)
        assert logged.run().info.status == "FINISHED"
        assert logged.steps("train/loss") == list(range(1, NUM_STEPS + 1))
        assert logged.steps("eval/loss") == list(range(25, NUM_STEPS + 1, 25))
