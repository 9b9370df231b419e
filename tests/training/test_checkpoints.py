"""A checkpoint is written completely or not at all, and a damaged one is never used."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from encore.core.errors import InputError
from encore.training.checkpoints import (
    OPTIMIZER_FILE,
    STATE_FILE,
    WEIGHTS_FILE,
    CheckpointManager,
    checkpoint_path,
    checkpoint_steps,
    newest_checkpoint,
)
from encore.training.disk_space import NoRoomError
from encore.training.distributed import Ranks
from encore.training.evaluation import TrainingDivergedError
from encore.training.run_folder import TrainingRun
from encore.training.training_options import TrainingConfig
from tests.worlds.studies import flip_bit

CONFIG = {"config": {"learning_rate": 2e-5, "seed": 0}, "data_sha256": "d1"}
IDENTITY = {**CONFIG, "weights": {"dtype": "float32"}}


def tensors(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "trunk.weight": torch.randn(8, 4, generator=generator).bfloat16(),
        "heads.weight": torch.randn(3, 8, generator=generator),
    }


def write(
    folder: Path,
    step: int,
    *,
    keep: int = 2,
    weights: dict[str, Tensor] | None = None,
    optimizer: dict[str, Tensor] | None = None,
) -> Path:
    model = nn.Module()
    model.trunk = nn.Linear(1, 1)
    optimizer_of_run = SimpleNamespace(state=lambda: optimizer or tensors(step + 1000))
    config = TrainingConfig(keep_checkpoints=keep)
    training = SimpleNamespace(model=model, config=config, ranks=Ranks())
    manager = CheckpointManager(
        training, optimizer_of_run, TrainingRun(folder=folder, identity=CONFIG)
    )
    manager.weights = weights or tensors(step)
    return manager.save(step, evaluation={"loss": 0.25})


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def newest_step(folder: Path) -> int | None:
    checkpoint = newest_checkpoint(folder / "checkpoints", identity=IDENTITY)
    return None if checkpoint is None else checkpoint[0]["step"]


def test_a_checkpoint_is_read_as_written_and_the_newest_ones_are_kept(tmp_path):
    for step in (10, 20, 30, 7):
        write(tmp_path, step)
    assert checkpoint_steps(tmp_path / "checkpoints") == (7,)  # later ones were found damaged
    checkpoint = newest_checkpoint(tmp_path / "checkpoints", identity=IDENTITY)
    state, weights, optimizer = checkpoint
    assert (state["step"], state["evaluation"]) == (7, {"loss": 0.25})
    expected = (tensors(7), tensors(1007))
    torch.testing.assert_close((weights, optimizer), expected, rtol=0, atol=0)
    for step in (10, 20, 30):
        write(tmp_path, step)
    assert checkpoint_steps(tmp_path / "checkpoints") == (20, 30)


@pytest.mark.parametrize("damage", [flip_bit, Path.unlink, truncate])
@pytest.mark.parametrize("file", [WEIGHTS_FILE, OPTIMIZER_FILE, STATE_FILE])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path, caplog, file, damage):
    write(tmp_path, 10)
    damaged = write(tmp_path, 20)
    damage(damaged / file)
    assert newest_step(tmp_path) == 10
    [warning] = caplog.messages
    assert str(damaged) in warning
    assert file in warning


def test_if_all_checkpoints_are_damaged_a_warning_says_so(tmp_path, caplog):
    assert newest_step(tmp_path) is None
    assert caplog.text == ""
    flip_bit(write(tmp_path, 10) / WEIGHTS_FILE)
    moved = checkpoint_path(tmp_path / "checkpoints", 90)
    write(tmp_path, 20).rename(moved)  # now it has the name of another step
    assert newest_step(tmp_path) is None
    assert "is of step 20" in caplog.messages[0]
    assert "no checkpoint is whole; training starts from the beginning" in caplog.messages[-1]
    write(tmp_path, 10)
    assert newest_step(tmp_path) == 10
    assert not moved.exists()


def test_a_checkpoint_of_another_config_is_refused_with_the_first_difference(tmp_path):
    path = write(tmp_path, 10)
    identity = {"config": {"learning_rate": 1e-5, "seed": 1}, "data_sha256": "d1"}
    message = r"step-00000010 .*config\.learning_rate is 2e-05 there and 1e-05 here.*--out"
    with pytest.raises(InputError, match=message):
        newest_checkpoint(path.parent, identity=identity)


@pytest.mark.parametrize("large", ["weights", "optimizer"])
def test_a_disk_that_fills_up_costs_only_the_checkpoint_being_written(tmp_path, large):
    """A write inside safetensors really fails: files above 1 MiB are not allowed."""
    write(tmp_path, 10)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(NoRoomError, match=r"checkpoint of step 20.* step 10 is kept"):
            write(tmp_path, 20, **{large: {"w": torch.zeros(1 << 20)}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000010"]
    assert newest_step(tmp_path) == 10


def test_a_weight_that_is_not_finite_is_never_checkpointed(tmp_path):
    write(tmp_path, 10)
    weights = tensors(20)
    weights["heads.weight"][0, 0] = float("nan")
    with pytest.raises(TrainingDivergedError, match=r"weight heads\.weight .*at step 20"):
        write(tmp_path, 20, weights=weights)
    assert checkpoint_steps(tmp_path / "checkpoints") == (10,)


def test_a_checkpoint_is_flushed_to_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """Its files and folder are flushed before the rename, and the parent folder after it."""
    synced: list[Path] = []
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink())
    )
    write(tmp_path, 2)
    names = [path.name.split(".tmp")[0] for path in synced]
    last = max(index for index, path in enumerate(synced) if ".step-00000002.tmp" in str(path))
    assert {*names[:last]} >= {WEIGHTS_FILE, OPTIMIZER_FILE, STATE_FILE}
    assert names[last] == ".step-00000002"
    assert tmp_path / "checkpoints" in synced[last:]
