"""A training config becomes the optimizer it names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from encore.errors import InputError
from encore.training.config import TrainingConfig
from encore.training.optimizers import make_optimizer
from encore.training.optimizers.adamw import PlainAdamW
from encore.training.optimizers.stochastic import StochasticAdamW
from tests.training.optimizers.tiny import TinyModel, train, weights


@pytest.mark.parametrize(
    ("dtype", "name", "expected"),
    [
        (torch.bfloat16, "auto", StochasticAdamW),
        (torch.float32, "auto", PlainAdamW),
        (torch.bfloat16, "adamw", PlainAdamW),
        (torch.float32, "adamw-stochastic", StochasticAdamW),
    ],
)
def test_the_number_format_decides_unless_the_config_does(dtype, name, expected):
    optimizer = make_optimizer(TinyModel(dtype=dtype), TrainingConfig(optimizer=name))
    assert type(optimizer) is expected


def test_frozen_bfloat16_weights_do_not_ask_for_stochastic_rounding():
    model = TinyModel()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == "head")
    assert type(make_optimizer(model, TrainingConfig())) is PlainAdamW


def test_the_constants_reach_the_update():
    # The first step of AdamW is w (1 - lr decay) - lr g / (|g| + epsilon), whatever the betas:
    # 1 (1 - 0.1 * 0.5) - 0.1 * 2 / (2 + 2) = 0.9. Before the second, with g = 0 and betas
    # (0.5, 0.75), the unbiased moments are 0.5 / 0.75 and 0.75 / 0.4375 = 1.3093²:
    # 0.9 * 0.95 - 0.1 * (2/3) / (1.3093 + 2) = 0.83486.
    config = TrainingConfig(
        optimizer="adamw-stochastic", weight_decay=0.5, adam_betas=(0.5, 0.75), adam_epsilon=2.0
    )
    for name in ("adamw", "adamw-stochastic"):
        model = nn.Module()
        model.weight = nn.Parameter(torch.ones(1))
        optimizer = make_optimizer(model, config.model_copy(update={"optimizer": name}))
        for gradient, expected in ((2.0, 0.9), (0.0, 0.83486)):
            model.weight.grad = torch.tensor([gradient])
            optimizer.arm(step=0, learning_rate=0.1)
            optimizer.finish()
            assert float(model.weight.detach()) == pytest.approx(expected, abs=1e-5)


def test_the_seed_of_the_run_is_that_of_the_rounding():
    results = []
    for seed in (0, 1):
        model = TinyModel()
        train(model, make_optimizer(model, TrainingConfig(seed=seed)), steps=range(2))
        results.append(weights(model)["layer"])
    assert not torch.equal(*results)


def test_8_bit_states_without_a_library_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InputError, match="optimizer adamw-8bit needs torchao"):
        make_optimizer(TinyModel(), TrainingConfig(optimizer="adamw-8bit"))
