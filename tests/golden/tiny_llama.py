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


def write_tiny_llama(folder: Path, *, labels: Sequence[str] = ()) -> Path:
    """Write two layers and a tokenizer of bytes to ``folder`` and return it.

    Args:
        folder: The folder to create; it must not exist.
        labels: Output labels of a classifier. Empty: a language model instead of a classifier.
    """
    from safetensors.numpy import save_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

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
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
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
    architecture = AutoModelForSequenceClassification if labels else AutoModelForCausalLM
    model = architecture.from_config(AutoConfig.from_pretrained(folder))
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    # The numbers are drawn for the embedding and the last norm first, then for layers and heads.
    parts = ("score", "lm_head", "model.layers")
    order = sorted(shapes, key=lambda name: [name.startswith(part) for part in parts])
    generator = np.random.default_rng(0)
    tensors = {}
    for name in order:
        random = generator.normal(scale=0.2, size=shapes[name]).astype(np.float32)
        tensors[name] = np.ones_like(random) if "norm" in name else random
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
