"""Adapters train on a frozen trunk and merge into an ordinary model."""

from __future__ import annotations

import pytest
import torch

from encore.model.layouts import lay_out
from encore.model.reward_model import MultiHeadRewardModel
from encore.training.lora import add_adapters, merge_adapters
from encore.training.optimizers import make_optimizer, trainable_parameters
from encore.training.training_options import TrainingConfig
from tests.worlds.models import PAD, pair_with_shared_beginning, tiny_model

# Each of two layers: queries, keys, values, output, gate, up, down.
NUM_LINEAR = 2 * 7


def scores(model: MultiHeadRewardModel) -> torch.Tensor:
    sequences = pair_with_shared_beginning(5, 4, 7, seed=0)
    return model(lay_out(sequences, layout="packed", pad_token_id=PAD, is_causal=model.is_causal))


def adapted(model_type: str = "llama"):
    model = tiny_model(model_type)
    return model, add_adapters(model, rank=4, alpha=8, seed=0)


def train(model: MultiHeadRewardModel) -> None:
    optimizer = make_optimizer(model, TrainingConfig())
    for step in range(3):
        optimizer.before_last_backward(step=step, learning_rate=0.01)
        (scores(model) - 1).square().mean().backward()
        optimizer.finish()


def test_only_adapters_and_heads_are_trained_and_they_change_the_scores():
    (model, _), untouched = adapted(), tiny_model("llama")
    names = trainable_parameters(model)
    assert sum("lora" in name for name in names) == 2 * NUM_LINEAR
    assert {name for name in names if "lora" not in name} == {"heads.weight"}
    torch.testing.assert_close(scores(model), scores(untouched), rtol=0, atol=0)
    train(model)
    assert not torch.allclose(scores(model), scores(untouched), atol=1e-3)
    trunk = {name.replace("base_layer.", ""): p for name, p in model.trunk.named_parameters()}
    for name, parameter in untouched.trunk.named_parameters():
        assert torch.equal(trunk[name], parameter), name


@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_merging_keeps_the_scores_and_leaves_an_ordinary_trunk(model_type):
    (model, adapters), plain = adapted(model_type), tiny_model(model_type)
    train(model)
    expected = scores(model).detach()
    merge_adapters(adapters)
    torch.testing.assert_close(scores(model), expected, rtol=1e-5, atol=1e-6)
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert [type(m) for m in model.trunk.modules()] == [type(m) for m in plain.trunk.modules()]
    assert not hasattr(model.trunk, "peft_config")  # or `save_pretrained` would write adapters
    assert all(parameter.requires_grad for parameter in model.parameters())
