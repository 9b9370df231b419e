"""Write the judge's folder: what `transformers` and vLLM read, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer

from encore.demo.training.network import JudgeNetwork, hugging_face_tensors
from encore.demo.training.vocabulary import ASSISTANT, BEGIN, END, PAD, SYSTEM, USER

CONTEXT_TOKENS = 4096

CHAT_TEMPLATE = (
    "{{- '" + BEGIN + "' -}}"
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'user' -%}{{- '" + USER + "' -}}"
    "{%- elif message['role'] == 'assistant' -%}{{- '" + ASSISTANT + "' -}}"
    "{%- elif message['role'] == 'system' -%}{{- '" + SYSTEM + "' -}}"
    "{%- else -%}{{- raise_exception('roles are system, user and assistant') -}}{%- endif -%}"
    "{{- message['content'] + '" + END + "' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '" + ASSISTANT + "' -}}{%- endif -%}"
)


def write_judge(network: JudgeNetwork, tokenizer: Tokenizer, folder: Path) -> None:
    """Write config, weights (fp16 on disk, read as fp32) and tokenizer into a folder."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: weight.to(torch.float16).cpu().contiguous()
        for name, weight in hugging_face_tensors(network).items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    _write_json(folder / "config.json", _config(network, tokenizer))
    _write_json(folder / "generation_config.json", _generation_config(tokenizer))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config())


def _config(network: JudgeNetwork, tokenizer: Tokenizer) -> dict[str, object]:
    shape = network.shape
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": tokenizer.token_to_id(BEGIN),
        "dtype": "float32",
        "eos_token_id": tokenizer.token_to_id(END),
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": CONTEXT_TOKENS,
        "mlp_bias": False,
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_heads,
        "pad_token_id": tokenizer.token_to_id(PAD),
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_parameters": {"rope_theta": shape.rope_theta, "rope_type": "default"},
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": shape.vocab_size,
    }


def _generation_config(tokenizer: Tokenizer) -> dict[str, object]:
    return {
        "bos_token_id": tokenizer.token_to_id(BEGIN),
        "do_sample": False,
        "eos_token_id": tokenizer.token_to_id(END),
        "max_new_tokens": 8,
        "pad_token_id": tokenizer.token_to_id(PAD),
    }


def _tokenizer_config() -> dict[str, object]:
    return {
        "add_bos_token": False,
        "bos_token": BEGIN,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "model_max_length": CONTEXT_TOKENS,
        "pad_token": PAD,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
