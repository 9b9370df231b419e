"""A small random reward model on disk that both sides load: one Llama with a one-label head."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

from encore.demo import judge_path
from encore.model.loading import quiet_transformers


def write_model(folder: Path, *, hidden: int, layers: int) -> int:
    """Save a seeded model with the demo judge's tokenizer; how many parameters it has."""
    tokenizer = AutoTokenizer.from_pretrained(judge_path())
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=2048,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        num_labels=1,
    )
    torch.manual_seed(0)
    model = LlamaForSequenceClassification(config)
    with quiet_transformers():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())
