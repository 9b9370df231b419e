"""A tiny random Llama, backbone or classifier. Its bytes belong to the recorded keys."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.worlds.tokenizers import byte_level

_SPECIAL_TOKENS = ("<pad>", "<bos>", "<eot>", "<user>", "<assistant>")
_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<eot>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
_HIDDEN = 32
_INNER = 48
_LAYERS = 2
_HEADS = 2


def write_tiny_llama(folder: Path, *, labels: Sequence[str] = ()) -> Path:
    """Write two layers and a tokenizer of bytes to ``folder`` and return it.

    Args:
        folder: The folder to create; it must not exist.
        labels: Output labels of a classifier. Empty: a language model instead of a classifier.
    """
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    names = dict(zip(("pad_token", "bos_token", "eos_token"), _SPECIAL_TOKENS, strict=False))
    tokenizer = byte_level(
        _SPECIAL_TOKENS,
        template=_CHAT_TEMPLATE,
        additional_special_tokens=list(_SPECIAL_TOKENS[3:]),
        model_max_length=1024,
        **names,
    )
    tokenizer.save_pretrained(folder)
    num_tokens = len(tokenizer)
    config = {
        "architectures": ["LlamaForSequenceClassification" if labels else "LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": num_tokens,
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "max_position_embeddings": 1024,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "dtype": "float32",
    }
    if labels:
        config["id2label"] = {str(index): label for index, label in enumerate(labels)}
        config["label2id"] = {label: index for index, label in enumerate(labels)}
    (folder / "config.json").write_text(json.dumps(config))
    generator = np.random.default_rng(0)
    tensors = {}
    for name, shape in _shapes(num_tokens, num_labels=len(labels)).items():
        random = generator.normal(scale=0.2, size=shape).astype(np.float32)
        tensors[name] = np.ones_like(random) if "norm" in name else random
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _shapes(num_tokens: int, *, num_labels: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (num_tokens, _HIDDEN),
        "model.norm.weight": (_HIDDEN,),
    }
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.self_attn.{part}_proj.weight": (_HIDDEN, _HIDDEN) for part in "qkvo"}
        shapes |= {
            f"{prefix}.mlp.gate_proj.weight": (_INNER, _HIDDEN),
            f"{prefix}.mlp.up_proj.weight": (_INNER, _HIDDEN),
            f"{prefix}.mlp.down_proj.weight": (_HIDDEN, _INNER),
            f"{prefix}.input_layernorm.weight": (_HIDDEN,),
            f"{prefix}.post_attention_layernorm.weight": (_HIDDEN,),
        }
    if num_labels:
        return {**shapes, "score.weight": (num_labels, _HIDDEN)}
    return {**shapes, "lm_head.weight": (num_tokens, _HIDDEN)}
