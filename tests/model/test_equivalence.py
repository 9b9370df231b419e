"""Whatever the layout, a response has one score and one gradient (fp32: 1e-5, 1e-4 relative)."""

from __future__ import annotations

import itertools

import pytest
import torch

from encore.demo import judge_path
from encore.errors import InputError
from encore.model.config import BackboneConfig
from encore.model.layouts import lay_out
from encore.model.loading import load_reward_model
from tests.model.tiny_models import pair_with_shared_beginning, tiny_model

PAIRS = [(0, 1), (2, 3), (4, 5)]


def responses(vocabulary: int):
    """Three pairs: a long beginning in common, nothing in common, all but the last token."""
    long = pair_with_shared_beginning(40, 9, 17, seed=1, vocabulary=vocabulary)
    nothing = pair_with_shared_beginning(0, 5, 30, seed=2, vocabulary=vocabulary)
    almost = pair_with_shared_beginning(12, 1, 1, seed=3, vocabulary=vocabulary)
    return [*long, *nothing, *almost]


def shipped_judge():
    model = load_reward_model(
        BackboneConfig(model=str(judge_path()), dtype="float32"), head_ids=["a", "b", "c"]
    )
    with torch.no_grad():
        weights = torch.randn(model.heads.weight.shape, generator=torch.Generator().manual_seed(0))
        model.heads.weight.copy_(0.05 * weights)
    return model


MODELS = {
    "shipped": (shipped_judge, 16_384),
    "grouped-query-llama": (lambda: tiny_model("llama"), 97),
    "bert": (lambda: tiny_model("bert"), 97),
    "bert-class-token": (lambda: with_pooling(tiny_model("bert"), "class-token"), 97),
    "llama-mean": (lambda: with_pooling(tiny_model("llama"), "mean"), 97),
}


def with_pooling(model, pooling: str):
    model.pooling = pooling
    return model


def microbatches(model, batch, layout: str):
    """The batch in one microbatch, or in one for each sequence."""
    common = {"pad_token_id": 1, "is_causal": model.is_causal}
    if layout == "single":
        return [lay_out([ids], layout="single", **common) for ids in batch]
    return [lay_out(batch, layout=layout, groups=PAIRS, **common)]


def scores_and_gradients(model, batch, layout: str):
    """Scores of all sequences and the gradient of one fixed weighted sum of them."""
    model.zero_grad()
    score_NR = torch.cat([model(microbatch) for microbatch in microbatches(model, batch, layout)])
    weight_NR = torch.randn(score_NR.shape, generator=torch.Generator().manual_seed(1))
    (score_NR * weight_NR).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    return score_NR.detach(), gradients


def assert_same(one, other):
    torch.testing.assert_close(one[0], other[0], atol=1e-5, rtol=0)
    # A gradient that is zero in exact arithmetic (a key's bias) is rounding and nothing else.
    rounding = 1e-6 * torch.cat([g.flatten() for g in other[1].values()]).norm()
    for name, gradient in one[1].items():
        expected = other[1][name]
        assert (gradient - expected).norm() <= 1e-4 * expected.norm() + rounding, name


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layout", ["packed", "sorted", "prefix-shared"])
def test_every_layout_gives_the_scores_and_gradients_of_one_by_one(name, layout):
    make, vocabulary = MODELS[name]
    model = make()
    batch = responses(vocabulary)
    if layout == "prefix-shared" and (not model.is_causal or model.pooling != "last"):
        with pytest.raises(InputError, match=r"prefix-shared.*use 'packed'"):
            scores_and_gradients(model, batch, layout)
        return
    expected = scores_and_gradients(model, batch, "single")
    assert_same(scores_and_gradients(model, batch, layout), expected)
    assert expected[0].std() > 1e-2  # scores that differ: equality says something
    assert all(gradient.isfinite().all() for gradient in expected[1].values())


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *itertools.product(
            ["shipped", "grouped-query-llama"], ["packed", "sorted", "prefix-shared", "single"]
        ),
        *itertools.product(["bert"], ["packed", "sorted", "single"]),
    ],
)
def test_gradient_checkpointing_changes_nothing(name, layout):
    make, vocabulary = MODELS[name]
    model = make()
    batch = responses(vocabulary)
    plain = scores_and_gradients(model, batch, layout)
    calls = []
    model.trunk.get_input_embeddings().register_forward_hook(lambda *_: calls.append("embedding"))
    layer = next(
        m
        for n, m in model.trunk.named_modules()
        if n.endswith(("layers.0.mlp.up_proj", "layer.0.intermediate.dense"))
    )
    layer.register_forward_hook(lambda *_: calls.append("layer"))
    model.enable_gradient_checkpointing()
    assert_same(scores_and_gradients(model, batch, layout), plain)
    num_passes = len(batch) if layout == "single" else 1
    assert calls.count("layer") == 2 * calls.count("embedding") == 2 * num_passes  # really twice
