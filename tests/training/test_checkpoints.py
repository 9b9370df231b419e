"""A checkpoint is on disk whole or not at all, and what is damaged is never believed."""

from __future__ import annotations

import errno
import resource
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
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
ENVIRONMENT = {"device": "cpu"}
Usage = namedtuple("Usage", "total used free")


def tensors(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "trunk.weight": torch.randn(8, 4, generator=generator).bfloat16(),
        "heads.weight": torch.randn(3, 8, generator=generator),
    }


def write(folder: Path, step: int, *, keep: int = 2, identity: dict = IDENTITY) -> Path:
    weights, optimizer = tensors(step), tensors(step + 1000)
    return write_checkpoint(
        folder, state_of(step, identity), weights=weights, optimizer=optimizer, keep=keep
    )


def state_of(step: int, identity: dict = IDENTITY) -> dict:
    environment = {"environment": ENVIRONMENT, "evaluation": {"loss": 0.25}}
    return {"step": step, "identity": identity, **environment}


def flip_bit(path: Path, *, position: float, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[int(position * (len(data) - 1))] ^= 1 << bit
    path.write_bytes(data)


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Bit for bit: dtype, shape and every byte."""
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype
        and torch.equal(left[name].view(torch.uint8), right[name].view(torch.uint8))
        for name in left
    )


def test_what_was_written_comes_back_bit_for_bit(tmp_path):
    path = write(tmp_path, 7)
    found = newest_checkpoint(tmp_path, identity=IDENTITY)
    assert found is not None
    assert found.path == path
    assert {name: found.state[name] for name in state_of(7)} == state_of(7)
    assert same(found.weights, tensors(7))
    assert same(found.optimizer, tensors(1007))


def test_the_newest_ones_are_kept(tmp_path):
    for step in (10, 20, 30, 40):
        write(tmp_path, step, keep=2)
    assert checkpoint_steps(tmp_path) == (30, 40)
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000030", "step-00000040"}


@pytest.mark.parametrize("position", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("file", [WEIGHTS_FILE, OPTIMIZER_FILE, STATE_FILE])
def test_one_flipped_bit_sends_back_to_the_checkpoint_before(tmp_path, caplog, file, position):
    write(tmp_path, 10)
    damaged = write(tmp_path, 20)
    flip_bit(damaged / file, position=position)
    found = newest_checkpoint(tmp_path, identity=IDENTITY)
    assert found is not None
    assert found.state["step"] == 10
    [warning] = caplog.messages
    assert str(damaged) in warning
    assert file in warning


@pytest.mark.parametrize("file", [WEIGHTS_FILE, OPTIMIZER_FILE, STATE_FILE])
def test_a_missing_or_short_file_is_damage_too(tmp_path, caplog, file):
    write(tmp_path, 10)
    gone, short = write(tmp_path, 20, keep=3), write(tmp_path, 30, keep=3)
    (gone / file).unlink()
    with (short / file).open("r+b") as stream:
        stream.truncate(20)
    found = newest_checkpoint(tmp_path, identity=IDENTITY)
    assert found is not None
    assert found.state["step"] == 10
    assert [str(path) in text for path, text in zip((short, gone), caplog.messages, strict=True)]


def test_a_folder_under_the_name_of_another_step_is_damage(tmp_path, caplog):
    write(tmp_path, 10)
    checkpoint_path(tmp_path, 10).rename(checkpoint_path(tmp_path, 90))
    assert newest_checkpoint(tmp_path, identity=IDENTITY) is None
    assert "is of step 10" in caplog.text


def test_when_all_are_damaged_that_is_said_and_nothing_is_used(tmp_path, caplog):
    assert newest_checkpoint(tmp_path / "not-made-yet", identity=IDENTITY) is None
    assert caplog.text == ""
    for step in (10, 20):
        flip_bit(write(tmp_path, step) / WEIGHTS_FILE, position=0.9)
    assert newest_checkpoint(tmp_path, identity=IDENTITY) is None
    assert len(caplog.messages) == 3
    assert "no checkpoint is whole; training starts from the beginning" in caplog.messages[-1]


def test_a_damaged_checkpoint_is_replaced_when_its_step_is_reached_again(tmp_path, caplog):
    write(tmp_path, 10)
    flip_bit(write(tmp_path, 20) / WEIGHTS_FILE, position=0.5)
    write(tmp_path, 20)
    found = newest_checkpoint(tmp_path, identity=IDENTITY)
    assert found is not None
    assert found.state["step"] == 20
    assert caplog.text == ""
    assert not list(tmp_path.glob(".*"))


def test_a_checkpoint_of_another_config_is_refused_with_the_first_difference(tmp_path):
    write(tmp_path, 10)
    wanted = {"config": {"learning_rate": 1e-5, "seed": 1}, "data_sha256": "d1"}
    message = r"step-00000010 .*config\.learning_rate is 2e-05 there and 1e-05 here.*--out"
    with pytest.raises(InputError, match=message):
        newest_checkpoint(tmp_path, identity=wanted)
    assert checkpoint_steps(tmp_path) == (10,)


def test_free_space_is_looked_at_before_anything_is_written(tmp_path, monkeypatch):
    write(tmp_path, 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 30, (1 << 30) - 100, 100))
    monkeypatch.setattr(checkpoints, "save_file", lambda *_: pytest.fail("it was written"))
    with pytest.raises(
        NoRoomError, match=r"checkpoint of step 20 needs .* GiB, the disk has 0\.00"
    ):
        write(tmp_path, 20)
    assert checkpoint_steps(tmp_path) == (10,)


@pytest.mark.parametrize("failing", [WEIGHTS_FILE, OPTIMIZER_FILE])
def test_a_disk_that_fills_up_midway_costs_only_that_checkpoint(tmp_path, monkeypatch, failing):
    write(tmp_path, 10)

    def half_written(content: dict[str, Tensor], path: Path) -> None:
        if path.name != failing:
            save_file(content, path)
            return
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(checkpoints, "save_file", half_written)
    with pytest.raises(
        NoRoomError, match="disk was full while the checkpoint of step 20"
    ) as caught:
        write(tmp_path, 20)
    assert "the checkpoint of step 10 is kept" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]
    monkeypatch.undo()
    found = newest_checkpoint(tmp_path, identity=IDENTITY)
    assert found is not None
    assert found.state["step"] == 10


def test_the_operating_systems_own_refusal_is_understood(tmp_path):
    """A real failed write inside safetensors, which reports it in words: files over 1 MiB fail."""
    write(tmp_path, 10)
    state = state_of(20)
    large = {"w": torch.zeros(1 << 20)}  # 4 MiB
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(NoRoomError, match="the checkpoint of step 10 is kept"):
            write_checkpoint(tmp_path, state, weights=large, optimizer={}, keep=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]
