"""The estimate of activations against what autograd really keeps, on small models of every kind."""

from __future__ import annotations

import weakref

import pytest

from encore.training.plan.activations import Adapters, backward_bytes, kept_bytes, layer_bytes
from encore.training.plan.kinds import shape_from_config

NUM_TOKENS = 192
_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 224,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
KINDS = {
    "llama": ("llama", {**_SMALL, "num_key_value_heads": 4}),
    "llama, grouped keys": ("llama", {**_SMALL, "num_key_value_heads": 1}),
    "qwen2": ("qwen2", {**_SMALL, "num_key_value_heads": 4}),
    "qwen3": ("qwen3", {**_SMALL, "num_key_value_heads": 4, "head_dim": 16}),
    "gemma": ("gemma", {**_SMALL, "num_key_value_heads": 4, "head_dim": 16}),
    "olmo2": ("olmo2", {**_SMALL, "num_key_value_heads": 2}),
    "phi3": ("phi3", {**_SMALL, "num_key_value_heads": 4, "eos_token_id": 1}),
    # The masks of dropout are one byte on CUDA and four on a CPU: none here.
    "bert": (
        "bert",
        {**_SMALL, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    ),
}


def build(kind: str, *, dtype: str, is_checkpointed: bool):
    """(shape, trunk in training mode) with torch's own attention."""
    import torch
    from transformers import AutoConfig, AutoModel

    model_type, settings = KINDS[kind]
    config = AutoConfig.for_model(model_type, **settings)
    pooler = {"add_pooling_layer": False} if kind == "bert" else {}
    trunk = AutoModel.from_config(
        config, attn_implementation="sdpa", dtype=getattr(torch, dtype), **pooler
    ).train()
    if is_checkpointed:
        trunk.gradient_checkpointing_enable()
    return shape_from_config(config.to_dict(), name=kind), trunk


def saved_bytes(trunk) -> int:
    """Bytes of distinct storages that a forward pass keeps, parameters aside."""
    import torch

    own = {parameter.untyped_storage().data_ptr() for parameter in trunk.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # held, so that no address is used twice
        return tensor

    ids = torch.arange(NUM_TOKENS)[None] % 128
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = trunk(input_ids=ids, use_cache=False).last_hidden_state
    assert hidden.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


#: Phi 3 makes queries, keys and values in one matrix, so that none of the three is freed alone.
TOLERANCE = {"phi3": 0.15}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_forward_pass_keeps_is_estimated_to_within_1_percent(kind, dtype):
    shape, trunk = build(kind, dtype=dtype, is_checkpointed=False)
    estimate = kept_bytes(
        shape,
        num_tokens=NUM_TOKENS,
        bytes_per_number=4 if dtype == "float32" else 2,
        is_checkpointed=False,
    )
    assert saved_bytes(trunk) == pytest.approx(estimate, rel=TOLERANCE.get(kind, 0.01))


@pytest.mark.parametrize("kind", KINDS)
def test_with_checkpointing_only_the_inputs_of_layers_are_kept_between_passes(kind):
    """The estimate is for the fullest moment, with one layer computed again: without it, here.

    The angles of the rotation are alive too, but as arguments, which the hook does not see.
    """
    shape, trunk = build(kind, dtype="float32", is_checkpointed=True)
    numbers = {"num_tokens": NUM_TOKENS, "bytes_per_number": 4}
    again = NUM_TOKENS * layer_bytes(shape, bytes_per_number=4)
    unseen = NUM_TOKENS * 2 * 4 * shape.head_dim if shape.is_causal else 0
    estimate = kept_bytes(shape, is_checkpointed=True, **numbers) - again - unseen
    assert saved_bytes(trunk) == pytest.approx(estimate, rel=0.03)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_adapters_keep_is_estimated_to_within_5_percent(dtype):
    """A little less: before the first adapter nothing needs a gradient, so nothing is kept."""
    import torch

    from encore.training.lora import add_adapters

    shape, trunk = build("llama", dtype=dtype, is_checkpointed=False)
    model = torch.nn.Module()
    model.trunk, model.heads = trunk, torch.nn.Linear(64, 2)
    add_adapters(model, rank=8, alpha=16, seed=0)
    width = 4 if dtype == "float32" else 2
    estimate = kept_bytes(
        shape,
        num_tokens=NUM_TOKENS,
        bytes_per_number=width,
        is_checkpointed=False,
        adapters=Adapters(rank=8, bytes_per_number=width),
    )
    assert saved_bytes(trunk) == pytest.approx(estimate, rel=0.05)


def peak_bytes(trunk) -> int:
    """The most bytes of tensors alive in a forward and backward pass, parameters aside.

    Every gradient of a parameter is freed as soon as it is there, as in-backward updates do.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    own = {parameter.untyped_storage()._cdata for parameter in trunk.parameters()}
    sizes: dict[int, int] = {}

    class Live(TorchDispatchMode):
        now = peak = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    self.see(tensor.untyped_storage())
            return result

        def see(self, storage):
            key = storage._cdata
            if key in own or key in sizes:
                return
            sizes[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.forget, key)

        def forget(self, key):
            self.now -= sizes.pop(key)

    def free(parameter):
        parameter.grad = None

    for parameter in trunk.parameters():
        parameter.register_post_accumulate_grad_hook(free)
    ids = torch.arange(NUM_TOKENS)[None] % 128
    with Live() as live:
        trunk(input_ids=ids, use_cache=False).last_hidden_state[0, -1].float().sum().backward()
    return live.peak


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "bert"])
def test_the_fullest_moment_of_a_step_is_estimated_to_within_5_percent(
    kind, dtype, is_checkpointed
):
    shape, trunk = build(kind, dtype=dtype, is_checkpointed=is_checkpointed)
    numbers = {"num_tokens": NUM_TOKENS, "bytes_per_number": 4 if dtype == "float32" else 2}
    estimate = kept_bytes(shape, is_checkpointed=is_checkpointed, **numbers)
    estimate += backward_bytes(shape, **numbers)
    assert peak_bytes(trunk) == pytest.approx(estimate, rel=0.05)
