"""Backbones by a short name, for a plan without a download: dimensions from their config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from encore.training.plan.kinds import shape_from_config
from encore.training.plan.shapes import ModelShape


def _config(
    model_type: str,
    *,
    layers: int,
    hidden: int,
    intermediate: int,
    heads: tuple[int, int],
    head_dim: int | None = None,
    vocab: int,
    length: int,
    tied: bool = False,
) -> Mapping[str, Any]:
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": length,
        "tie_word_embeddings": tied,
    }


# ``heads`` are those of queries and of keys.
_LLAMA_8B = _config(
    "llama",
    layers=32,
    hidden=4096,
    intermediate=14336,
    heads=(32, 8),
    vocab=128_256,
    length=131_072,
)
_CONFIGS: dict[str, Mapping[str, Any]] = {
    # The paper's backbones, Skywork-Reward-Llama-3.1-8B and FsfairX-LLaMA3-RM (8,192 tokens).
    "llama-3.1-8b": _LLAMA_8B,
    "llama-3-8b": {**_LLAMA_8B, "max_position_embeddings": 8192},
    "llama-3-70b": _config(
        "llama",
        layers=80,
        hidden=8192,
        intermediate=28672,
        heads=(64, 8),
        vocab=128_256,
        length=8192,
    ),
    "llama-3.2-1b": _config(
        "llama",
        layers=16,
        hidden=2048,
        intermediate=8192,
        heads=(32, 8),
        vocab=128_256,
        length=131_072,
        tied=True,
    ),
    "llama-3.2-3b": _config(
        "llama",
        layers=28,
        hidden=3072,
        intermediate=8192,
        heads=(24, 8),
        vocab=128_256,
        length=131_072,
        tied=True,
    ),
    "mistral-7b": _config(
        "mistral",
        layers=32,
        hidden=4096,
        intermediate=14336,
        heads=(32, 8),
        vocab=32_768,
        length=32_768,
    ),
    "qwen2.5-7b": _config(
        "qwen2",
        layers=28,
        hidden=3584,
        intermediate=18944,
        heads=(28, 4),
        vocab=152_064,
        length=32_768,
    ),
    "qwen3-8b": _config(
        "qwen3",
        layers=36,
        hidden=4096,
        intermediate=12288,
        heads=(32, 8),
        head_dim=128,
        vocab=151_936,
        length=40_960,
    ),
    "gemma-2-2b": _config(
        "gemma2",
        layers=26,
        hidden=2304,
        intermediate=9216,
        heads=(8, 4),
        head_dim=256,
        vocab=256_000,
        length=8192,
        tied=True,
    ),
    "gemma-2-9b": _config(
        "gemma2",
        layers=42,
        hidden=3584,
        intermediate=14336,
        heads=(16, 8),
        head_dim=256,
        vocab=256_000,
        length=8192,
        tied=True,
    ),
    "gemma-2-27b": _config(
        "gemma2",
        layers=46,
        hidden=4608,
        intermediate=36864,
        heads=(32, 16),
        head_dim=128,
        vocab=256_000,
        length=8192,
        tied=True,
    ),
    # sentence-transformers' all-MiniLM-L6-v2.
    "minilm": _config(
        "bert",
        layers=6,
        hidden=384,
        intermediate=1536,
        heads=(12, 12),
        vocab=30_522,
        length=512,
        tied=True,
    ),
}

#: The names that `named_shape` knows.
SHAPE_NAMES = tuple(_CONFIGS)


def named_shape(name: str) -> ModelShape | None:
    """The shape of a short name, whatever its case; None for any other name."""
    config = _CONFIGS.get(name.lower())
    return None if config is None else shape_from_config(config, name=name.lower())
