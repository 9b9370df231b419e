"""`encore train`: help that teaches, one clear line on bad input, and a model at the end."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from encore.config import identity_of
from encore.training.checkpoints import checkpoint_steps
from encore.training.config import TrainingConfig
from tests.cli.conftest import Finished, Run
from tests.cli.test_commands import the_error
from tests.signals import hear_ctrl_c
from tests.training.studies import RULES, make_backbone, make_study, write_ratings
from tests.training.test_resume import environment, train_command

NUM_PAIRS = 24
SMALL = ("--max-length", 64, "--batch-pairs", 4, "--evaluation-share", 0.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    make_backbone(folder / "tiny")
    make_study(folder / "study", num_pairs=NUM_PAIRS)
    write_ratings(folder / "study", folder / "ratings.parquet")
    return folder


@pytest.fixture
def train(encore: Run, folder: Path, tmp_path: Path):
    def run(*arguments: object, out: str = "run") -> Finished:
        return encore(
            *("train", folder / "study", "--backbone", folder / "tiny"),
            *("--ratings", folder / "ratings.parquet", "--out", tmp_path / out),
            *SMALL,
            *arguments,
        )

    return run


def test_a_training_ends_with_a_table_of_heads_and_what_to_do_next(train, folder, tmp_path):
    finished = train("--max-steps", 3)
    assert finished.code == 0, finished.err
    assert all(rule in finished.out for rule in RULES)
    assert "R²" in finished.out
    assert "accuracy" in finished.out
    assert f"model {tmp_path / 'run' / 'model'}" in finished.err
    assert "next: encore " in finished.err
    assert "step 3 of 3: loss" in finished.err


def test_json_is_all_there_is_on_stdout_and_training_again_does_nothing(train, tmp_path):
    result = json.loads(train("--max-steps", 2, "--json").out)
    assert result["num_steps"] == 2
    assert result["is_new"]
    assert result["model"] == str(tmp_path / "run" / "model")
    assert set(result["evaluation"]["r2_by_head"]) == set(RULES)
    assert any("ratings are missing" in note for note in result["notes"])
    manifest = json.loads((tmp_path / "run" / "training.json").read_text())
    assert result["run_key"] == manifest["run_key"]
    again = train("--max-steps", 2, "--json")
    assert again.code == 0
    assert "finished before, nothing done" in again.err
    found = json.loads(again.out)
    assert not found["is_new"]
    assert found["evaluation"] == result["evaluation"]


def test_options_that_change_nothing_are_named(train):
    probe = train("--method", "probe", "--epochs", 2, "--lora-rank", 4, out="probe")
    assert "method probe has no use for --epochs" in probe.err
    assert "method probe has no use for --lora-rank" in probe.err
    baseline = train("--objective", "bradley-terry", "--max-steps", 1, out="baseline")
    assert "objective bradley-terry reads no ratings" in baseline.err
    plain = train("--max-steps", 1, "--evaluation-share", 0, out="plain")
    assert "changes nothing" not in plain.err
    assert "nothing was held out" in plain.err


def test_a_setting_of_the_command_line_is_the_setting_of_the_run(train, tmp_path):
    arguments = ["--max-steps", 1, "--learning-rate", 0.003, "--layout", "sorted", "--seed", 5]
    assert train(*arguments, "--no-gradient-checkpointing").code == 0
    identity = json.loads((tmp_path / "run" / "training.json").read_text())["identity"]
    expected = TrainingConfig(
        batch_pairs=4,
        evaluation_share=0.2,
        max_steps=1,
        learning_rate=0.003,
        layout="sorted",
        seed=5,
        gradient_checkpointing=False,
    )
    assert identity["config"] == identity_of(expected)
    assert identity["backbone"]["max_length"] == 64


def test_without_options_the_settings_are_the_papers(encore, folder, tmp_path):
    arguments = ["--backbone", folder / "tiny", "--ratings", folder / "ratings.parquet"]
    finished = encore("train", folder / "study", *arguments, "--out", tmp_path / "run")
    assert finished.code == 0, finished.err
    identity = json.loads((tmp_path / "run" / "training.json").read_text())["identity"]
    assert identity["config"] == identity_of(TrainingConfig())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--learning-rate", 2], "--learning-rate 2.0: "),
        (["--evaluation-share", 1], "--evaluation-share 1.0: "),
        (["--method", "probe", "--head-init", "own"], "head_init own has no effect"),
        (["--ratings", "nowhere.parquet"], "nowhere.parquet: no such file"),
        (["--backbone", "./nowhere"], "'./nowhere': no such folder"),
    ],
)
def test_bad_input_is_one_line_that_names_it(train, arguments, message):
    finished = train(*arguments)
    assert finished.code == 1
    assert message in the_error(finished)


@pytest.mark.parametrize("option", ["--method", "--layout", "--optimizer", "--objective"])
def test_a_choice_that_is_none_is_a_usage_error(train, option):
    assert train(option, "best").code == 2


def test_help_has_an_example_and_every_default(encore):
    text = " ".join(encore("train", "--help").out.split())
    for part in (
        "Example: encore train",
        "--objective",
        "--method",
        "2e-05",
        "Ctrl-C",
        "training/RUN_KEY",
    ):
        assert part in text


@pytest.mark.parametrize(
    "stop", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)]
)
def test_a_stopped_training_keeps_its_checkpoint(encore, folder, tmp_path, stop):
    """While it runs, a second one in the same folder is refused."""
    out = tmp_path / "run"
    command = train_command(folder, out=out, num_steps=2000)
    process = subprocess.Popen(
        command,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_ctrl_c,  # noqa: PLW1509 - sets one signal
    )
    try:
        deadline = time.monotonic() + 120
        while not checkpoint_steps(out / "checkpoints"):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        second = encore(*command[3:])
        assert second.code == 1
        assert "another process is training here" in the_error(second)
        process.send_signal(stop)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[stop]
    assert "; finished work is kept, the same command continues" in errors
    assert "Traceback" not in errors
    assert checkpoint_steps(out / "checkpoints")
    assert not list(out.rglob(".*.tmp-*"))
