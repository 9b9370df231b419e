"""A checkpoint is on disk whole or not at all, and what is damaged is never believed."""

from __future__ import annotations

import resource
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from torch import Tensor

from encore.errors import InputError
from encore.training import checkpoints
from encore.training.checkpoints import (
    OPTIMIZER_FILE,
    STATE_FILE,
    WEIGHTS_FILE,
    checkpoint_path,
    checkpoint_steps,
    newest_checkpoint,
    write_checkpoint,
)
from encore.training.disk import NoRoomError

IDENTITY = {"config": {"learning_rate": 2e-5, "seed": 0}, "data_sha256": "d1"}
Usage = namedtuple("Usage", "total used free")
each_file = pytest.mark.parametrize("file", [WEIGHTS_FILE, OPTIMIZER_FILE, STATE_FILE])


def tensors(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "trunk.weight": torch.randn(8, 4, generator=generator).bfloat16(),
        "heads.weight": torch.randn(3, 8, generator=generator),
    }


def state_of(step: int) -> dict:
    environment = {"environment": {"device": "cpu"}, "evaluation": {"loss": 0.25}}
    return {"step": step, "identity": IDENTITY, **environment}


def write(folder: Path, step: int, *, keep: int = 2) -> Path:
    weights, optimizer = tensors(step), tensors(step + 1000)
    write_checkpoint(folder, state_of(step), weights=weights, optimizer=optimizer, keep=keep)
    return checkpoint_path(folder, step)


def flip_bit(path: Path, *, position: float = 0.5) -> None:
    data = bytearray(path.read_bytes())
    data[int(position * (len(data) - 1))] ^= 1
    path.write_bytes(data)


def newest_step(folder: Path) -> int | None:
    found = newest_checkpoint(folder, identity=IDENTITY)
    return None if found is None else found[0]["step"]


def test_what_was_written_comes_back_bit_for_bit_and_the_newest_ones_are_kept(tmp_path):
    for step in (10, 20, 30, 7):
        write(tmp_path, step)
    assert {one.name for one in tmp_path.iterdir()} == {"step-00000007"}  # later ones were refused
    state, weights, optimizer = newest_checkpoint(tmp_path, identity=IDENTITY)
    assert {name: state[name] for name in state_of(7)} == state_of(7)
    for ours, theirs in ((weights, tensors(7)), (optimizer, tensors(1007))):
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert tensor.dtype == theirs[name].dtype
            assert torch.equal(tensor, theirs[name])
    for step in (10, 20, 30):
        write(tmp_path, step)
    assert checkpoint_steps(tmp_path) == (20, 30)


@pytest.mark.parametrize("position", [0.0, 0.6, 1.0])
@each_file
def test_one_flipped_bit_sends_back_to_the_checkpoint_before(tmp_path, caplog, file, position):
    write(tmp_path, 10)
    damaged = write(tmp_path, 20)
    flip_bit(damaged / file, position=position)
    assert newest_step(tmp_path) == 10
    [warning] = caplog.messages
    assert str(damaged) in warning
    assert file in warning


@each_file
def test_a_missing_or_short_file_is_damage_too(tmp_path, caplog, file):
    write(tmp_path, 10)
    gone, short = write(tmp_path, 20, keep=3), write(tmp_path, 30, keep=3)
    (gone / file).unlink()
    with (short / file).open("r+b") as stream:
        stream.truncate(20)
    assert newest_step(tmp_path) == 10
    assert [str(path) in text for path, text in zip((short, gone), caplog.messages, strict=True)]


def test_when_all_are_damaged_that_is_said_and_a_step_is_written_again(tmp_path, caplog):
    assert newest_step(tmp_path / "not-made-yet") is None
    assert caplog.text == ""
    flip_bit(write(tmp_path, 10) / WEIGHTS_FILE)
    write(tmp_path, 20).rename(checkpoint_path(tmp_path, 90))  # under another step's name
    assert newest_step(tmp_path) is None
    assert "is of step 20" in caplog.messages[0]
    assert "no checkpoint is whole; training starts from the beginning" in caplog.messages[-1]
    caplog.clear()
    write(tmp_path, 10)
    assert newest_step(tmp_path) == 10
    assert caplog.text == ""
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_a_checkpoint_of_another_config_is_refused_with_the_first_difference(tmp_path):
    write(tmp_path, 10)
    wanted = {"config": {"learning_rate": 1e-5, "seed": 1}, "data_sha256": "d1"}
    message = r"step-00000010 .*config\.learning_rate is 2e-05 there and 1e-05 here.*--out"
    with pytest.raises(InputError, match=message):
        newest_checkpoint(tmp_path, identity=wanted)


def test_free_space_is_looked_at_before_anything_is_written(tmp_path, monkeypatch):
    write(tmp_path, 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 30, (1 << 30) - 100, 100))
    monkeypatch.setattr(checkpoints, "save_file", lambda *_: pytest.fail("it was written"))
    with pytest.raises(NoRoomError, match=r"step 20 needs .* GiB, the disk has 0\.00"):
        write(tmp_path, 20)


@pytest.mark.parametrize("large", ["weights", "optimizer"])
def test_a_disk_that_fills_up_midway_costs_only_that_checkpoint(tmp_path, large):
    """A real failed write inside safetensors, which reports it in words: files over 1 MiB fail."""
    write(tmp_path, 10)
    small = {"w": torch.zeros(1)}
    content = {"weights": small, "optimizer": small} | {large: {"w": torch.zeros(1 << 20)}}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(NoRoomError, match=r"checkpoint of step 20.* step 10 is kept"):
            write_checkpoint(tmp_path, state_of(20), keep=2, **content)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]
    assert newest_step(tmp_path) == 10
