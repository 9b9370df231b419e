"""Several processes train the model that one process trains, through the real launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from encore.training.checkpoints import OPTIMIZER_FILE, WEIGHTS_FILE, checkpoint_path
from encore.training.checkpoints import checkpoint_steps as steps_in
from encore.training.log import UNREPEATABLE, read_log
from tests.training import sharded_update
from tests.training.studies import make_backbone, make_study, write_ratings

ROOT = Path(__file__).resolve().parent.parent.parent
NUM_STEPS = 8
LAUNCH_TIMEOUT_SECONDS = 300
#: One process, or two. On one machine, found by its own address.
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]


def train_command(folder: Path, *, out: Path, num_steps: int = NUM_STEPS, **more: object):
    options = {
        "backbone": folder / "tiny",
        "ratings": folder / "ratings.parquet",
        "out": out,
        "max-length": 64,
        # Steps of 5 or 6 pairs in passes of about two pairs: now and then a process has less.
        "batch-pairs": 6,
        "tokens-per-microbatch": 64,
        "epochs": 100,
        "max-steps": num_steps,
        "learning-rate": 1e-3,
        "warmup-steps": 0,
        "evaluate-every": 4,
        "checkpoint-every": 2,
        "evaluation-share": 0.1,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return ["-m", "encore.cli", "train", str(folder / "study"), *arguments]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def start(command: list[str], *, logs: Path | None = None) -> subprocess.Popen[str]:
    """A command in one process or, with a folder for what each says, in two."""
    launcher: list[str] = []
    if logs is not None:
        launcher = [*LAUNCHER, "--nproc-per-node", "2", "--redirects", "3", "--log-dir", str(logs)]
    return subprocess.Popen(
        [sys.executable, *launcher, *command],
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(command: list[str], *, logs: Path | None = None) -> str:
    process = start(command, logs=logs)
    text, _ = process.communicate(timeout=LAUNCH_TIMEOUT_SECONDS)
    assert process.returncode == 0, text + said(logs)
    return text


def said(logs: Path | None, *, rank: int | None = None) -> str:
    """What processes wrote to stdout and stderr."""
    if logs is None:
        return ""
    files = logs.rglob(f"attempt_0/{'*' if rank is None else rank}/*.log")
    return "".join(path.read_text() for path in sorted(files))


def logged(path: Path) -> list[dict[str, object]]:
    kept = [
        {name: value for name, value in record.items() if name not in UNREPEATABLE}
        for record in read_log(path)
    ]
    assert kept
    return kept


def assert_same_run(one: Path, other: Path) -> None:
    """Losses, norms, evaluations and weights to 1e-5; the order of sums is another."""
    for name in ("log.jsonl", "evaluations.jsonl"):
        for left, right in zip(logged(one / name), logged(other / name), strict=True):
            assert numbers_of(left) == pytest.approx(numbers_of(right), abs=1e-5, rel=1e-5)
    last = checkpoint_path(Path("checkpoints"), NUM_STEPS)
    for path in (last / WEIGHTS_FILE, last / OPTIMIZER_FILE, Path("model/model.safetensors")):
        left, right = load_file(one / path), load_file(other / path)
        assert left.keys() == right.keys()
        for name, tensor in left.items():
            assert tensor.shape == right[name].shape
            torch.testing.assert_close(tensor, right[name], atol=1e-5, rtol=1e-5)
    heads = [load_file(out / "model" / "heads.safetensors") for out in (one, other)]
    torch.testing.assert_close(*heads, atol=1e-5, rtol=1e-5)


def numbers_of(record: dict[str, object]) -> dict[str, float]:
    """Every number of a record, those of each head too."""
    numbers: dict[str, float] = {}
    for name, value in record.items():
        inner = value if isinstance(value, dict) else {"": value}
        numbers |= {f"{name}.{key}": number for key, number in inner.items() if number is not None}
    # A process that waits for others computes a pair once more.
    numbers.pop("num_computed.", None)
    return numbers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    make_backbone(folder / "tiny")
    make_study(folder / "study", num_pairs=40)
    write_ratings(folder / "study", folder / "ratings.parquet")
    return folder


@pytest.fixture(scope="module")
def alone(folder) -> Path:
    """The run of one process."""
    out = folder / "alone"
    run(train_command(folder, out=out))
    return out


@pytest.fixture(scope="module")
def together(folder) -> tuple[Path, Path]:
    """The same run in two processes, and what they said."""
    out, logs = folder / "together", folder / "together-logs"
    run(train_command(folder, out=out), logs=logs)
    return out, logs


def test_two_processes_train_the_model_of_one(alone, together):
    assert_same_run(together[0], alone)


def test_only_the_first_process_speaks(together):
    _, logs = together
    assert said(logs, rank=1) == ""
    first = said(logs, rank=0)
    assert first.count("training on cpu") == 1
    assert first.count(f"{NUM_STEPS} steps; model") == 1


VARIANTS = {
    "in-the-backward-pass": {"optimizer": "adamw-stochastic"},
    # One head: the second process has an empty shard of it.
    "preferences": {"objective": "bradley-terry", "layout": "prefix-shared"},
    "checkpointed": {"gradient_checkpointing": "", "optimizer": "adamw-stochastic"},
}


@pytest.mark.full
@pytest.mark.parametrize("name", VARIANTS)
def test_two_processes_train_as_one_in_other_ways(folder, tmp_path, name):
    one, two = tmp_path / "one", tmp_path / "two"
    commands = [train_command(folder, out=out, **VARIANTS[name]) for out in (one, two)]
    commands = [[text for text in command if text] for command in commands]  # flags have no value
    run(commands[0])
    run(commands[1], logs=tmp_path / "logs")
    assert_same_run(two, one)


def test_a_process_that_dies_ends_the_run_and_one_process_goes_on(folder, tmp_path, alone):
    out, logs = tmp_path / "out", tmp_path / "logs"
    command = train_command(folder, out=out)
    process = start(command, logs=logs)
    deadline = time.monotonic() + LAUNCH_TIMEOUT_SECONDS
    while not steps_in(out / "checkpoints"):
        assert process.poll() is None, said(logs)
        assert time.monotonic() < deadline, "no checkpoint was written"
        time.sleep(0.002)
    os.kill(pid_of(process, rank=1), signal.SIGKILL)
    process.communicate(timeout=LAUNCH_TIMEOUT_SECONDS)

    assert process.returncode != 0
    kept = max(steps_in(out / "checkpoints"))
    assert 0 < kept < NUM_STEPS, "the run was over before a process could be killed"
    assert not (out / "model").exists()
    text = run(command)
    assert f"going on after step {kept} of {NUM_STEPS}" in text
    assert_same_run(out, alone)


@pytest.mark.full
def test_two_processes_go_on_where_one_was_killed(folder, tmp_path, alone):
    out, logs = tmp_path / "out", tmp_path / "logs"
    command = train_command(folder, out=out)
    process = start(command)
    while not steps_in(out / "checkpoints"):
        assert process.poll() is None
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert "going on after step" in (run(command, logs=logs) or said(logs, rank=0))
    assert_same_run(out, alone)


def pid_of(launcher: subprocess.Popen[str], *, rank: int) -> int:
    """The process of a rank among the launcher's children."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == launcher.pid and f"RANK={rank}".encode() in variables:
            return int(folder.name)
    raise AssertionError(f"no process of rank {rank}")


def test_what_needs_one_process_is_refused_in_one_line(folder, tmp_path):
    logs = tmp_path / "logs"
    process = start(train_command(folder, out=tmp_path / "out", method="lora"), logs=logs)
    process.communicate(timeout=LAUNCH_TIMEOUT_SECONDS)
    assert process.returncode != 0
    assert said(logs).count("error:") == 1
    assert "method 'lora' with 2 processes: expected full" in said(logs, rank=0)
    assert not (tmp_path / "out").exists()


def test_shards_are_rounded_with_the_bits_of_the_whole(tmp_path):
    out = tmp_path / "sharded.safetensors"
    run(["-m", "tests.training.sharded_update", str(out)], logs=tmp_path / "logs")
    sharded = load_file(out)

    module = sharded_update.layer()
    optimizer = sharded_update.optimizer_of(module)
    norms = sharded_update.update(module, optimizer, shard=lambda gradient, _: gradient)
    whole = {**dict(module.named_parameters()), **optimizer.state()}
    assert sharded["weight"].ne(sharded_update.layer().weight).any()
    for name, tensor in whole.items():
        assert torch.equal(sharded[name], tensor.detach())
    torch.testing.assert_close(sharded["norms"], torch.tensor(norms), rtol=1e-6, atol=0)
