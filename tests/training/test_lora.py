"""Adapters train beside a frozen trunk and merge into an ordinary model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from encore.errors import InputError
from encore.model.layouts import Microbatch, lay_out
from encore.model.reward_model import MultiHeadRewardModel
from encore.training.config import TrainingConfig
from encore.training.lora import add_adapters, merge_adapters
from encore.training.optimizers import make_optimizer
from tests.model.tiny_models import PAD, pair_with_shared_beginning, tiny_model

RANK, ALPHA = 4, 8
# Of a layer of the tiny Llama: queries, keys, values, output, gate, up, down.
NUM_LINEAR = 2 * 7


def microbatch() -> Microbatch:
    sequences = pair_with_shared_beginning(5, 4, 7, seed=0)
    return lay_out(
        sequences, layout="prefix-shared", groups=[(0, 1)], pad_token_id=PAD, is_causal=True
    )


def adapted(model_type: str = "llama", *, seed: int = 0, rank: int = RANK) -> MultiHeadRewardModel:
    model = tiny_model(model_type)
    add_adapters(model, rank=rank, alpha=ALPHA, seed=seed)
    return model


def train(model: MultiHeadRewardModel, *, num_steps: int = 3) -> None:
    optimizer = make_optimizer(model, TrainingConfig())
    for step in range(num_steps):
        loss = (model(microbatch()) - 1).square().mean()
        optimizer.arm(step=step, learning_rate=0.01)
        loss.backward()
        optimizer.finish()


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def test_adapters_and_heads_are_all_that_is_trained():
    names = trainable(adapted())
    assert sum("lora_A" in name for name in names) == NUM_LINEAR
    assert sum("lora_B" in name for name in names) == NUM_LINEAR
    assert {name for name in names if "lora" not in name} == {"heads.weight"}


def test_training_moves_the_scores_and_leaves_the_trunks_own_weights():
    model, untouched = adapted(), tiny_model("llama")
    expected = untouched(microbatch())
    torch.testing.assert_close(model(microbatch()), expected, rtol=0, atol=0)
    train(model)
    assert not torch.allclose(model(microbatch()), untouched(microbatch()), atol=1e-3)
    own = {name.replace("base_layer.", ""): p for name, p in model.trunk.named_parameters()}
    for name, parameter in untouched.trunk.named_parameters():
        assert torch.equal(own[name], parameter), name


@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_merging_keeps_the_scores_and_leaves_an_ordinary_trunk(model_type: str):
    model = adapted(model_type)
    sequences = pair_with_shared_beginning(5, 4, 7, seed=0)
    batch = lay_out(sequences, layout="packed", pad_token_id=PAD, is_causal=model.is_causal)
    optimizer = make_optimizer(model, TrainingConfig())
    for step in range(3):
        optimizer.arm(step=step, learning_rate=0.01)
        (model(batch) - 1).square().mean().backward()
        optimizer.finish()
    expected = model(batch).detach()
    merge_adapters(model)
    torch.testing.assert_close(model(batch), expected, rtol=1e-5, atol=1e-6)
    plain = tiny_model(model_type)
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert [type(m) for m in model.trunk.modules()] == [type(m) for m in plain.trunk.modules()]
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_merged_trunk_is_saved_without_a_trace_of_the_adapters(tmp_path: Path):
    model = adapted()
    train(model)
    merge_adapters(model)
    model.trunk.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert not [name for name in saved if "lora" in name or "base_layer" in name]
    assert saved.keys() == dict(tiny_model("llama").trunk.named_parameters()).keys()
    assert not (tmp_path / "adapter_config.json").exists()


def test_the_seed_draws_the_adapters_and_nothing_else():
    state = torch.random.get_rng_state()
    first, same, other = adapted(seed=1), adapted(seed=1), adapted(seed=2)
    name = "trunk.layers.0.self_attn.q_proj.lora_A.default.weight"
    drawn = [trainable(model)[name] for model in (first, same, other)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(torch.random.get_rng_state(), state)


def test_adapters_have_the_trunks_number_format_and_train_in_it():
    model = tiny_model("llama")
    model.trunk.bfloat16()
    add_adapters(model, rank=RANK, alpha=ALPHA, seed=0)
    dtypes = {p.dtype for name, p in trainable(model).items() if "lora" in name}
    assert dtypes == {torch.bfloat16}
    assert model.heads.weight.dtype == torch.float32
    before = model(microbatch()).detach()
    train(model)
    assert math.isfinite(float(model(microbatch()).sum().detach()))
    assert not torch.equal(model(microbatch()).detach(), before)


def test_trunks_that_cannot_be_adapted_are_refused():
    with pytest.raises(InputError, match="has adapters already"):
        add_adapters(adapted(), rank=RANK, alpha=ALPHA, seed=0)
    model = nn.Module()
    model.trunk, model.heads = nn.Embedding(3, 3), nn.Linear(3, 1)
    with pytest.raises(InputError, match="trunk Embedding has no linear layer"):
        add_adapters(model, rank=RANK, alpha=ALPHA, seed=0)


def test_an_adapter_that_is_not_finite_is_not_merged():
    model = adapted()
    layer = model.trunk.layers[1].mlp.up_proj
    nn.init.constant_(layer.lora_B["default"].weight, math.nan)
    with pytest.raises(InputError, match=r"adapter of layers\.1\.mlp\.up_proj holds NaN"):
        merge_adapters(model)
