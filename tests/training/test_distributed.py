"""Several processes, started by the real launcher, train the same model as one process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas
import psutil
import pytest
import torch
from safetensors.torch import load_file

from encore.core.errors import InputError
from encore.model.backbone_options import BackboneConfig
from encore.training.checkpoints import OPTIMIZER_FILE, WEIGHTS_FILE, checkpoint_path
from encore.training.checkpoints import checkpoint_steps as steps_in
from encore.training.distributed import Ranks, joined_ranks
from encore.training.training_options import TrainingConfig
from tests.training import sharded_update
from tests.worlds.servers import wait_until
from tests.worlds.trainings import (
    UnconnectedRanks,
    make_world,
    one_thread,
    repeatable,
    train_command,
)

ROOT = Path(__file__).resolve().parent.parent.parent
NUM_STEPS = 8
LAUNCH_TIMEOUT_SECONDS = 300
#: Two processes on one machine, which connect by its own address.
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
#: Steps of 5 or 6 pairs in passes of about two pairs: sometimes a process has fewer passes.
SETTINGS = {
    "batch_pairs": 6,
    "tokens_per_microbatch": 64,
    "max_steps": NUM_STEPS,
    "warmup_steps": 0,
    "evaluate_every": 4,
    "checkpoint_every": 2,
    "evaluation_share": 0.1,
}


def start(command: list[str], *, logs: Path | None = None) -> subprocess.Popen[str]:
    """Start a command in one process or, with a folder for their logs, in two."""
    launcher: list[str] = []
    if logs is not None:
        launcher = [*LAUNCHER, "--nproc-per-node", "2", "--redirects", "3", "--log-dir", str(logs)]
    # Variables that `accelerate launch --use_fsdp` sets for libraries.
    accelerate = {"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
    return subprocess.Popen(
        [sys.executable, *launcher, *command],
        env=one_thread() | accelerate,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(command: list[str], *, logs: Path | None = None) -> str:
    process = start(command, logs=logs)
    text, _ = process.communicate(timeout=LAUNCH_TIMEOUT_SECONDS)
    assert process.returncode == 0, text + ("" if logs is None else read_logs(logs))
    return text


def read_logs(logs: Path, *, rank: int | str = "*") -> str:
    """Return the stdout and stderr of the processes."""
    return "".join(path.read_text() for path in sorted(logs.rglob(f"attempt_0/{rank}/*.log")))


def numbers_of(path: Path) -> pandas.DataFrame:
    """Return every number of a log's records, with those of each head."""
    # Not num_computed: a process with fewer passes computes a pair twice.
    records = pandas.json_normalize(repeatable(path)).drop(columns="num_computed", errors="ignore")
    return records.astype(float)


def assert_same_run(
    actual: Path, expected: Path, *, tolerance: float = 1e-5, accuracy_tolerance: float = 0.0
) -> None:
    """Compare losses, norms, evaluations and weights. Sums have a different order."""
    for name in ("log.jsonl", "evaluations.jsonl"):
        numbers, expected_numbers = numbers_of(actual / name), numbers_of(expected / name)
        is_accuracy = numbers.columns.str.startswith("accuracy")
        for columns, limit in ((~is_accuracy, tolerance), (is_accuracy, accuracy_tolerance)):
            pandas.testing.assert_frame_equal(
                numbers.loc[:, columns],
                expected_numbers.loc[:, columns],
                atol=limit or tolerance / 2,  # pandas adds the two
                rtol=tolerance / 2,
            )
    last = checkpoint_path(Path("checkpoints"), NUM_STEPS)
    files = ("model/model.safetensors", "model/heads.safetensors")
    for path in (last / WEIGHTS_FILE, last / OPTIMIZER_FILE, *files):
        tensors, expected_tensors = load_file(actual / path), load_file(expected / path)
        torch.testing.assert_close(tensors, expected_tensors, atol=tolerance, rtol=tolerance)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("ranks"), num_pairs=40)


@pytest.fixture(scope="module")
def single_run(folder) -> Path:
    """Train in one process."""
    out = folder / "single"
    run(train_command(folder, out=out, **SETTINGS))
    return out


@pytest.mark.services
def test_two_processes_train_the_model_of_one_and_only_rank_zero_prints(single_run, folder):
    out, logs = folder / "two", folder / "two-logs"
    run(train_command(folder, out=out, **SETTINGS), logs=logs)
    assert_same_run(out, single_run)
    assert read_logs(logs, rank=1) == ""
    output = read_logs(logs, rank=0)
    assert output.count("training on cpu") == 1
    assert output.count(f"{NUM_STEPS} steps; model") == 1


VARIANTS = {
    "checkpointed": {"gradient_checkpointing": None, "optimizer": "adamw-stochastic"},
    # With one head, the second process has an empty shard of it.
    "preferences": {"objective": "bradley-terry", "layout": "prefix-shared"},
    "head 0": {"preference_head": "joint", "rating_loss_weight": 0.5},
    # The number formats of a GPU: trunk and states in bfloat16 (auto), heads in float32. A sum in
    # another order may round to the next bfloat16 number, a 256th away.
    "bfloat16": {"dtype": "bfloat16"},
}


@pytest.mark.full
@pytest.mark.parametrize("name", VARIANTS)
def test_two_processes_train_as_one_with_other_settings(folder, tmp_path, name):
    single, two = tmp_path / "single", tmp_path / "two"
    outs = (single, two)
    commands = [train_command(folder, out=out, **SETTINGS, **VARIANTS[name]) for out in outs]
    run(commands[0])
    run(commands[1], logs=tmp_path / "logs")
    if name != "bfloat16":
        assert_same_run(two, single)
        return
    # A margin below that rounding has its sign by chance, by processor: one pair may turn round.
    num_held_out = min(numbers_of(single / "evaluations.jsonl")["num_pairs"])
    assert_same_run(two, single, tolerance=2e-2, accuracy_tolerance=1 / num_held_out)


@pytest.mark.services
def test_a_process_that_dies_ends_the_run_and_one_process_continues(folder, tmp_path, single_run):
    out, logs = tmp_path / "out", tmp_path / "logs"
    command = train_command(folder, out=out, **SETTINGS)
    process = start(command, logs=logs)
    second = wait_until(lambda: pid_of(process, rank=1), seconds=LAUNCH_TIMEOUT_SECONDS)

    def has_checkpoint() -> bool:
        assert process.poll() is None, read_logs(logs)
        return bool(steps_in(out / "checkpoints"))

    wait_until(has_checkpoint, seconds=LAUNCH_TIMEOUT_SECONDS, pause_seconds=0.002)
    os.kill(second, signal.SIGKILL)
    process.communicate(timeout=LAUNCH_TIMEOUT_SECONDS)

    assert process.returncode != 0
    kept = max(steps_in(out / "checkpoints"))
    assert 0 < kept < NUM_STEPS, "the run was over before a process could be killed"
    assert not (out / "model").exists()
    assert f"going on after step {kept} of {NUM_STEPS}" in run(command)
    assert_same_run(out, single_run)


def pid_of(launcher: subprocess.Popen[str], *, rank: int) -> int:
    """Return the process of a rank among the launcher's children; 0 if there is none yet."""
    for child in psutil.Process(launcher.pid).children():
        with contextlib.suppress(psutil.Error):
            if child.environ().get("RANK") == str(rank):
                return child.pid
    return 0


@pytest.mark.services
def test_shards_are_rounded_with_the_bits_of_the_whole(tmp_path):
    out = tmp_path / "sharded.safetensors"
    run(["-m", "tests.training.sharded_update", str(out)], logs=tmp_path / "logs")
    sharded = load_file(out)
    module = sharded_update.layer()
    optimizer = sharded_update.optimizer_of(module)
    norms = sharded_update.update(module, optimizer, shard=lambda gradient, _: gradient)
    whole_tensors = {**dict(module.named_parameters()), **optimizer.state()}
    assert sharded["weight"].ne(sharded_update.layer().weight).any()
    for name, tensor in whole_tensors.items():
        assert torch.equal(sharded[name], tensor.detach())
    torch.testing.assert_close(sharded["norms"], torch.tensor(norms), rtol=1e-6, atol=0)


# --- checks before the start --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "lora"}, "method 'lora' with 2 processes: expected full; choose that"),
        ({"batch_pairs": 1}, "batch_pairs 1 with 2 processes: expected at least 2"),
        ({"clip_gradient": 1.0}, "clip_gradient 1.0 with 2 processes: expected none"),
        ({"layout": "sorted"}, "layout 'sorted' with 2 processes: expected packed or prefix-sh"),
    ],
)
def test_settings_that_need_one_process_are_refused_by_name(settings, message):
    with pytest.raises(InputError, match=message):
        UnconnectedRanks(0).check(TrainingConfig(**settings))
    Ranks().check(TrainingConfig(**settings))


def test_a_backbone_for_several_gpus_is_loaded_on_the_cpu_in_bfloat16():
    backbone = BackboneConfig(model="m")
    loaded, device = UnconnectedRanks(0).loading_options(backbone, device="cuda")
    assert (loaded.dtype, device) == ("bfloat16", "cpu")
    assert UnconnectedRanks(0).loading_options(backbone, device="cpu") == (backbone, "cpu")
    assert Ranks().loading_options(backbone, device="cuda") == (backbone, "cuda")


def test_a_launch_on_several_machines_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with (
        pytest.raises(InputError, match="2 of the processes are on this machine"),
        joined_ranks("cpu"),
    ):
        pass
