"""The measurement on a GPU: a model of Llama 3.1 8B's shape, random weights, full fine-tuning.

Both layouts train one and the same model in this process, in alternating rounds.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from tests.perf.training.data import Pairs, synthesise
from tests.perf.training.rounds import Round
from tests.perf.training.table import Arithmetic, table

LAYOUTS = ("packed", "prefix-shared")
_WARM_UP_STEPS = 3
_EPOCH_RESPONSES = 140_000
_SHAPE = "llama-3.1-8b"


def measure(options: argparse.Namespace) -> list[str]:
    """The lines to print."""
    from encore.training.optimizers import make_optimizer
    from tests.perf.training.ours import train_round

    model, vocabulary = _model()
    configs = {layout: _config(layout, options) for layout in LAYOUTS}
    optimizer = make_optimizer(model, configs["packed"])
    num_pairs = options.batch_pairs * options.steps
    pairs = synthesise(num_pairs=num_pairs, vocabulary=vocabulary)

    def steps(layout: str, count: int) -> Round:
        torch.cuda.reset_peak_memory_stats()
        return train_round(
            model, pairs, configs[layout], optimizer=optimizer, pad_token_id=0, num_steps=count
        )

    for layout in LAYOUTS:
        steps(layout, _WARM_UP_STEPS)
    rounds: dict[str, list[Round]] = {f"ours, {layout}": [] for layout in LAYOUTS}
    for number in range(options.rounds):
        for layout in LAYOUTS[:: 1 if number % 2 == 0 else -1]:
            rounds[f"ours, {layout}"].append(steps(layout, options.steps))
    heading = (
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {_SHAPE} with random weights, "
        f"bfloat16, full checkpointing, {type(optimizer).__name__} in the backward pass"
    )
    terms = (
        f"{options.batch_pairs} pairs a step, {options.steps} steps a round, "
        f"{pairs.length_N.mean():.0f} tokens a response, median of {options.rounds} rounds"
    )
    return [
        heading,
        terms,
        "",
        *table(rounds, arithmetic=_arithmetic(model, pairs), baseline="ours, packed"),
        "",
        *(_epoch(name, several[-1], pairs) for name, several in rounds.items()),
    ]


def _config(layout: str, options: argparse.Namespace) -> Any:
    from encore.training.config import TrainingConfig
    from tests.perf.training.ours import NEVER

    return TrainingConfig(
        objective="bradley-terry",
        layout=layout,
        batch_pairs=options.batch_pairs,
        tokens_per_microbatch=options.tokens_per_microbatch,
        evaluate_every=NEVER,
        checkpoint_every=NEVER,
    )


def _model() -> tuple[Any, int]:
    """On the device from the start: 15 GiB would take minutes to draw on a CPU."""
    from transformers import AutoModel, LlamaConfig

    from encore.model.attention import register_segment_attention
    from encore.model.fusing import fuse_elementwise
    from encore.model.reward_model import MultiHeadRewardModel
    from encore.training.backbone_shape import find_shape

    shape = find_shape(_SHAPE)
    assert shape is not None
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=shape.max_length,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        trunk = AutoModel.from_config(
            config, dtype=torch.bfloat16, attn_implementation=register_segment_attention()
        )
        model = MultiHeadRewardModel(trunk, head_ids=["reward"], pooling="last", is_causal=True)
    model.enable_gradient_checkpointing()
    fuse_elementwise(model.trunk)
    return model.train(), shape.vocab_size


def _arithmetic(model: Any, pairs: Pairs) -> Arithmetic:
    from encore.training.backbone_shape import (
        attention_length,
        flops_per_token,
        shape_from_config,
    )
    from encore.training.gpus import peak_flops

    trunk = model.trunk
    peak = peak_flops(torch.cuda.get_device_name(), dtype=str(next(trunk.parameters()).dtype))
    shape = shape_from_config(trunk.config.to_dict(), name="trunk")
    per_token = flops_per_token(shape, sequence_length=attention_length(pairs.length_N.tolist()))
    return Arithmetic(flops_per_token=per_token, peak_flops=peak)


def _epoch(name: str, last: Round, pairs: Pairs) -> str:
    num_tokens = _EPOCH_RESPONSES * float(pairs.length_N.mean())
    hours = num_tokens / last.tokens_per_second / 3600
    return f"{name}: an epoch of {_EPOCH_RESPONSES:,} responses in {hours:.2f} h"
