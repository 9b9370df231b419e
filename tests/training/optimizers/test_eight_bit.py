"""8-bit states by whichever library is there; here a stand-in with the same manners."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

import pytest
import torch
from torch import nn

from encore.errors import InputError
from encore.training.optimizers.eight_bit import EightBitAdamW, find_library
from tests.training.optimizers.tiny import (
    SETTINGS,
    TinyModel,
    assert_same_bits,
    snapshot,
    train,
    weights,
)


class Quantised:
    """A tensor in parts, as torchao's: codes, a scale."""

    def __init__(self, value: torch.Tensor) -> None:
        self.scale = value.abs().max().clamp(min=1e-12) / 127
        self.codes = torch.round(value / self.scale).to(torch.int8)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["codes", "scale"], None

    def value(self) -> torch.Tensor:
        return self.codes.float() * self.scale


class StandInAdamW(torch.optim.Optimizer):
    """AdamW with 8-bit moments; counts steps as bitsandbytes does, in a plain number."""

    def __init__(self, params, *, lr, betas, eps, weight_decay) -> None:
        super().__init__(
            params, {"lr": torch.tensor(lr), "betas": betas, "eps": eps, "wd": weight_decay}
        )

    @torch.no_grad()
    def step(self) -> None:
        group = self.param_groups[0]
        (weight,) = group["params"]
        assert weight.dtype == weight.grad.dtype == torch.float32
        state = self.state[weight]
        if not state:
            blank = torch.zeros_like(weight)
            state |= {"step": 0, "first": Quantised(blank), "root": Quantised(blank)}
        state["step"] += 1
        beta_1, beta_2 = group["betas"]
        first = state["first"].value().lerp(weight.grad, 1 - beta_1)
        second = state["root"].value().square().lerp(weight.grad.square(), 1 - beta_2)
        state["first"], state["root"] = Quantised(first), Quantised(second.sqrt())
        unbiased = first / (1 - beta_1 ** state["step"])
        root = (second / (1 - beta_2 ** state["step"])).sqrt()
        weight.mul_(1 - group["lr"] * group["wd"])
        weight.sub_(group["lr"] * unbiased / (root + group["eps"]))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package torchao that holds nothing else."""
    modules = {name: types.ModuleType(name) for name in ("torchao", "torchao.optim")}
    modules["torchao.optim"].AdamW8bit = StandInAdamW
    for name, module in modules.items():
        module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None)
        monkeypatch.setitem(sys.modules, name, module)


def optimizer_of(model: nn.Module, **options: bool) -> EightBitAdamW:
    library = find_library(device="cpu")
    assert library.package == "torchao"
    return EightBitAdamW(
        dict(model.named_parameters()), settings=SETTINGS, seed=0, library=library, **options
    )


@pytest.mark.skipif(
    importlib.util.find_spec("torchao") is not None, reason="torchao is installed here"
)
def test_without_a_library_the_error_names_them():
    with pytest.raises(InputError, match="needs torchao on cpu, which is not installed"):
        find_library(device="cpu")


def test_on_a_gpu_either_library_does(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="needs bitsandbytes or torchao on cuda"):
        find_library(device="cuda")


def test_a_broken_installation_says_why(stand_in, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(sys.modules["torchao.optim"], "AdamW8bit")
    with pytest.raises(InputError, match=r"torchao is installed, but .* cannot be loaded \("):
        find_library(device="cpu")


def test_it_trains_bfloat16_and_float32_parameters(stand_in):
    model, before = TinyModel(), weights(TinyModel())
    train(model, optimizer_of(model), steps=range(3))
    after = weights(model)
    for name in ("embedding", "layer", "head"):
        assert after[name].dtype == before[name].dtype
        assert not torch.equal(after[name], before[name]), name
    assert torch.equal(after["unused"], before["unused"])


def test_tiny_updates_are_not_lost_in_the_weights(stand_in):
    # 400 updates of 1e-5 each at weights of 0.02, whose neighbours are 1.2e-4 apart: 0.004
    # together. The mean of 4,096 has a standard error of 1.2e-4 sqrt(400 / 12) / 64 = 1.1e-5.
    weight = nn.Parameter(torch.full((4096,), 0.02, dtype=torch.bfloat16))
    before = float(weight.detach().double().mean())
    optimizer = EightBitAdamW(
        {"weight": weight},
        settings=type(SETTINGS)(),
        seed=0,
        library=find_library(device="cpu"),
    )
    for step in range(400):
        weight.grad = torch.ones_like(weight)
        optimizer.arm(step=step, learning_rate=1e-5)
        optimizer.finish()
    assert float(weight.detach().double().mean()) - before == pytest.approx(-0.004, rel=0.02)


def test_in_the_backward_pass_and_after_it_are_the_same_to_the_bit(stand_in):
    results = []
    for is_in_backward in (True, False):
        model = TinyModel()
        optimizer = optimizer_of(model, is_in_backward=is_in_backward)
        train(model, optimizer, steps=range(3))
        results.append(weights(model) | optimizer.state())
    assert_same_bits(*results)


def test_a_resumed_run_is_the_undisturbed_one_to_the_bit(stand_in):
    undisturbed = TinyModel()
    optimizer = optimizer_of(undisturbed)
    train(undisturbed, optimizer, steps=range(3))
    saved_weights, saved = weights(undisturbed), snapshot(optimizer.state())
    assert int(saved["layer/step"]) == 3
    assert saved["layer/first/codes"].dtype == torch.int8
    train(undisturbed, optimizer, steps=range(3, 6))

    resumed = TinyModel()
    resumed.load_state_dict(saved_weights, strict=False)
    second = optimizer_of(resumed)
    second.load_state(saved)
    assert_same_bits(saved, second.state())
    train(resumed, second, steps=range(3, 6))
    assert_same_bits(weights(undisturbed) | optimizer.state(), weights(resumed) | second.state())


def test_the_state_of_another_model_is_refused(stand_in):
    model = TinyModel()
    optimizer = optimizer_of(model)
    train(model, optimizer, steps=range(1))
    saved = snapshot(optimizer.state())
    with pytest.raises(InputError, match="optimizer state other/step: int64"):
        optimizer_of(model).load_state(saved | {"other/step": torch.tensor(1)})
    saved["layer/first/codes"] = saved["layer/first/codes"][:3]
    with pytest.raises(InputError, match="optimizer state first/codes"):
        optimizer_of(model).load_state(saved)
